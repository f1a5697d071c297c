"""Units at the end of an answer (and currency before it), folded to one name each."""

from __future__ import annotations

import re

ALIASES = {
    "cm": "centimeter centimeters centimetre centimetres", "mm": "millimeter millimeters millimetre millimetres",
    "m": "meter meters metre metres", "km": "kilometer kilometers kilometre kilometres", "in": "inch inches",
    "ft": "foot feet", "yd": "yard yards", "mi": "mile miles", "g": "gram grams", "kg": "kilogram kilograms",
    "mg": "milligram milligrams", "lb": "lbs pound pounds", "oz": "ounce ounces", "t": "ton tons tonne tonnes",
    "s": "sec second seconds", "ms": "millisecond milliseconds", "min": "minute minutes mins",
    "h": "hr hrs hour hours", "day": "days", "week": "weeks", "month": "months", "year": "yr yrs years",
    "L": "l liter liters litre litres", "mL": "ml milliliter milliliters",
    "deg": "degree degrees", "rad": "radian radians",
    "$": "dollar dollars usd", "cent": "cents", "€": "euro euros eur", "£": "gbp", "N": "newton newtons",
    "J": "joule joules", "W": "watt watts", "V": "volt volts", "A": "ampere amperes", "Pa": "pascal pascals",
    "Hz": "hz hertz", "K": "kelvin", "mol": "mole moles", "°C": "celsius", "°F": "fahrenheit", "mph": "", "kmh": "",
    "km/h": "", "m/s": "", "m/s^2": "", "unit": "units", "%": "percent percentage pct",
}  # fmt: skip
CANONICAL = {alias: unit for unit, aliases in ALIASES.items() for alias in (unit, *aliases.split())}
WORD = "|".join(sorted((re.escape(word) for word in CANONICAL if word[0].isalpha()), key=len, reverse=True))
POWER = r"(?:\s*\^\s*(?:\{\s*)?(?P<power>\d)\s*\}?)?"
LABELLED = re.compile(
    r"(?P<head>.+?)\s*\\(?:text|textrm|mbox|mathrm|textbf|operatorname|rm)\s*\{(?P<unit>[^{}]*)\}" + POWER, re.DOTALL
)
PLAIN = re.compile(
    rf"(?P<head>.*[\d)}}!])(?P<gap>\s*)(?P<unit>(?:square |sq |cubic )?(?:{WORD})(?:\s*/\s*(?:{WORD}))?){POWER}",
    re.DOTALL,
)
DEGREES = re.compile(
    r"(?P<head>.+?)\s*\^\{\\circ\}\s*(?P<scale>C|F|\\text\{\s*[CF]\s*\}|\\mathrm\{\s*[CF]\s*\})?", re.DOTALL
)
CURRENCY = re.compile(r"(?P<sign>-?)\s*(?:\\\$|\$|(?P<other>[€£¥]))\s*(?P<head>[\d.].*)", re.DOTALL)


def split_unit(text: str) -> tuple[str, str] | None:
    """(what is measured, unit), or None when there is no unit at the end. Percent is the unit ``%``."""
    if text.endswith("%") and text[:-1].strip():
        return text[:-1].strip(), "%"
    if (found := DEGREES.fullmatch(text)) is not None:
        scale = re.sub(r"[^CF]", "", (found["scale"] or "").replace("mathrm", "").replace("text", ""))
        return found["head"], f"°{scale}" if scale else "deg"
    if (found := CURRENCY.fullmatch(text)) is not None:
        return found["sign"] + found["head"], found["other"] or "$"
    if (found := LABELLED.fullmatch(text)) is not None and any(c.isalpha() for c in found["unit"]):
        return found["head"], canonical(found["unit"], found["power"])
    if (found := PLAIN.fullmatch(text)) is not None and (found["gap"] or len(found["unit"]) > 1):
        return found["head"], canonical(found["unit"], found["power"])
    return None


def canonical(unit: str, power: str | None = None) -> str:
    words = " ".join(unit.split())
    for prefix, exponent in (("square ", "2"), ("sq ", "2"), ("cubic ", "3")):
        if words.casefold().startswith(prefix):
            words, power = words[len(prefix) :], exponent
    name = "/".join(one(part.strip()) for part in words.split("/"))
    return f"{name}^{power}" if power and power != "1" else name


def one(word: str) -> str:
    known = CANONICAL.get(word) or CANONICAL.get(word.casefold())
    if known is not None:
        return known
    return word.casefold().removesuffix("s") if len(word) > 3 else word
