r"""Text for LaTeX: what is special there is escaped, Greek and signs are set as mathematics.

>>> print(tex("ξ̄ ± 5 %, λ_1 ≥ 10⁻⁶"))
$\bar{\xi}$ $\pm$ 5 \%, $\lambda$\_1 $\geq$ 10$^{-6}$
"""

from __future__ import annotations

import re
import unicodedata

_SPECIAL = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}",
    "–": "--", "…": r"\ldots{}", "\u200b": "",
    **{sign: "\\" + sign for sign in "{}&%$#_"},
}  # fmt: skip
_SIGNS = {
    "±": r"\pm", "−": "-", "×": r"\times", "≤": r"\leq", "≥": r"\geq", "≈": r"\approx",
    "∞": r"\infty", "·": r"\cdot", "∇": r"\nabla", "‖": r"\Vert", "½": r"\frac{1}{2}",
    "→": r"\to", "∂": r"\partial", "∈": r"\in", "∑": r"\sum", "√": r"\surd",
}  # fmt: skip
_ACCENTS = {"\u0304": "bar", "\u0302": "hat", "\u0303": "tilde"}
_LATIN = frozenset("ΑΒΕΖΗΙΚΜΝΟΡΤΧο")  # Greek letters that look Latin and have no command


def tex(text: str) -> str:
    """The text, safe to set with any LaTeX."""
    text = unicodedata.normalize("NFC", " ".join(text.split()))
    pattern = r"(.)([\u0302-\u0304])|([⁰¹²³⁴-⁹⁺⁻]+)|([₀-₉₊₋]+)|(.)"
    return re.sub(pattern, _glyphs, text)


def _glyphs(found: re.Match[str]) -> str:
    base, accent, above, below, single = found.groups()
    if accent:
        return rf"$\{_ACCENTS[accent]}{{{_symbol(base) or base}}}$"
    if above or below:
        level = unicodedata.normalize("NFKC", above or below).replace("−", "-")
        return f"${'^' if above else '_'}{{{level}}}$"
    symbol = _symbol(single)
    return f"${symbol}$" if symbol else _SPECIAL.get(single, single)


def _symbol(character: str) -> str:
    """The mathematical symbol of a character, or nothing."""
    words = unicodedata.name(character, "").replace("LAMDA", "LAMBDA").split()
    if words[:1] == ["GREEK"] and words[-2] == "LETTER" and character not in _LATIN:
        return "\\" + (words[-1].lower() if "SMALL" in words else words[-1].title())
    return _SIGNS.get(character, "")
