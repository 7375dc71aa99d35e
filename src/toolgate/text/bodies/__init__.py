"""How calls are written inside the marks of a syntax: as JSON, as tagged parameters, as Python; shared by the syntaxes."""
