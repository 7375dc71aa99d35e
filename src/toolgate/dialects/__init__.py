"""Pure translators, one folder per wire format: bytes of a dialect on one side, the conversation's values on the other."""
