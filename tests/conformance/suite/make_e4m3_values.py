#!/usr/bin/env python3
"""Writes e4m3_values.inc: what each of the 256 codes of E4M3 stands for, from the definition (Micikevicius et al., "FP8
Formats for Deep Learning", 2022, table 1): bias 7, no infinities, one NaN of either sign.

    python3 tests/conformance/suite/make_e4m3_values.py > tests/conformance/suite/e4m3_values.inc
"""
from fractions import Fraction


def value(code):
    exponent, mantissa = code >> 3 & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return "NAN"
    if exponent == 0:
        magnitude = Fraction(mantissa, 8) * Fraction(2) ** -6
    else:
        magnitude = (1 + Fraction(mantissa, 8)) * Fraction(2) ** (exponent - 7)
    assert Fraction(float(magnitude)) == magnitude
    return ("-" if code & 128 else "") + repr(float(magnitude))


print("// Made by make_e4m3_values.py.")
for row in range(0, 256, 8):
    print(", ".join(value(code) for code in range(row, row + 8)) + ",")
