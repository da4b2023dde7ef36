"""Converts formulas to MathML when the site is built, so that a page needs no script and no network.

Pages write formulas as ``$...$`` and ``$$...$$``, docstrings in Sphinx's notation.
"""

import html
import re

from latex2mathml.converter import convert

INLINE = (
    re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL),
    re.compile(r":math:<code>(.*?)</code>", re.DOTALL),
)
DISPLAY = (
    re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL),
    re.compile(r"<p>\.\. math::\s+(.*?)</p>", re.DOTALL),
)


def on_page_content(content, **_):
    """Called by MkDocs with the HTML of each page."""
    for display, patterns in (("block", DISPLAY), ("inline", INLINE)):
        for pattern in patterns:
            content = pattern.sub(lambda found, d=display: _mathml(found[1], d), content)
    return content


def _mathml(formula, display):
    # Markdown may have taken stars and underscores for emphasis.
    formula = re.sub(r"</?em>", "_", formula)
    return convert(html.unescape(formula).strip(), display=display)
