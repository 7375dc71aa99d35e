"""Write prompts and conversations for models that only write text, from editable templates.

`templates/` has the texts, one file for each variant. Knows no upstream and no answer.
"""

from toolgate.text_tools.prompts.prompt_renderer import CustomInstructionsFile, TextToolPromptRenderer
from toolgate.text_tools.prompts.template_files import PromptTemplateError

__all__ = ["CustomInstructionsFile", "PromptTemplateError", "TextToolPromptRenderer"]
