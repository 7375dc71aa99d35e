"""What a model that only writes text is told: prompts from editable templates, and conversations written as text.

`templates/` holds the wording, one file for each variant. Knows no upstream and no answer.
"""

from toolgate.text.prompts.loading import PromptError
from toolgate.text.prompts.wording import Prompts, Rule

__all__ = ["PromptError", "Prompts", "Rule"]
