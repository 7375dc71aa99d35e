"""Find tool calls and reasoning in streamed text. Knows no particular syntax."""
