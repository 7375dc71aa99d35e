"""Tool calls of models that only write text: read them from the text and write them into it. No I/O, no clock."""
