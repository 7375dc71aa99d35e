"""Read calls inside the marks of a syntax, written as JSON, as tagged parameters or as Python; shared by the syntaxes."""
