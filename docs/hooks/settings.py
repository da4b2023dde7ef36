"""How the settings of a class are shown: ``num_steps: int = setting(100, at_least(1))`` has the default 100."""

import griffe


class Settings(griffe.Extension):
    """Called by griffe, which reads the code for mkdocstrings."""

    def on_attribute_instance(self, *, attr, **_):
        value = attr.value
        if isinstance(value, griffe.ExprCall) and str(value.function) == "setting":
            default = value.arguments[0]
            attr.value = None if str(default) == "REQUIRED" else default
