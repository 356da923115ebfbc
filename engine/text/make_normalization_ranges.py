#!/usr/bin/env python3
"""Writes normalization_ranges.inc: the characters that Hugging Face tokenizers leave alone in normal forms.

Their tables are those of Unicode 9.0, so to them later characters have no decomposition, no combining class, and are no part
of a composition. Listed are those for which this makes a difference up to Unicode 16.0:
    pip install tokenizers==0.23.3 unicodedata2==16.0.0
    ./make_normalization_ranges.py > normalization_ranges.inc
"""
import random

import unicodedata2 as database
from tokenizers import normalizers

FORMS = {'NFC': normalizers.NFC(), 'NFKC': normalizers.NFKC()}


def differs(text, form='NFC'):
    return FORMS[form].normalize_str(text) != database.normalize(form, text)


def left_alone():
    found = set()
    for code_point in range(0x300, 0x110000):
        if 0xD800 <= code_point <= 0xDFFF:
            continue
        character = chr(code_point)
        if any(differs(character, form) for form in FORMS):
            found.add(code_point)
        if database.combining(character):
            # Marks of the lowest and the highest class, and one that composes.
            if any(differs(text) for text in (f'a{character}\u0334', f'a\u0345{character}', f'a\u0301{character}')):
                found.add(code_point)
        parts = database.decomposition(character).split()
        if len(parts) == 2 and parts[0][0] != '<':
            pair = [int(part, 16) for part in parts]
            if differs(''.join(map(chr, pair))):
                # Those of the pair that are as new as what it makes: no old characters of other planes are in such pairs.
                found.update(c for c in [code_point, *pair] if c > 0xFFFF)
    return found


def check(found):
    """Normal forms between the characters that are left alone are those of the tokenizers."""
    rng = random.Random(9)
    assigned = [c for c in range(0x20, 0x110000) if database.category(chr(c)) not in ('Cn', 'Cs', 'Co')]
    kinds = [assigned, sorted(found), [c for c in assigned if database.combining(chr(c))],
             [c for c in assigned if database.decomposition(chr(c))], [0x41, 0x61, 0x1100, 0x1161, 0x11A8, 0x301, 0x315]]
    for _ in range(200_000):
        text = ''.join(chr(rng.choice(rng.choice(kinds))) for _ in range(rng.randint(1, 7)))
        for form, normalizer in FORMS.items():
            made, stretch = '', ''
            for character in text:
                if ord(character) in found:
                    made += database.normalize(form, stretch) + character
                    stretch = ''
                else:
                    stretch += character
            assert normalizer.normalize_str(text) == made + database.normalize(form, stretch), ascii(text)


def main():
    found = left_alone()
    check(found)
    ranges = []
    for code_point in sorted(found):
        if ranges and ranges[-1][1] == code_point - 1:
            ranges[-1][1] = code_point
        else:
            ranges.append([code_point, code_point])
    print('// Of Unicode 9.0 to 16.0; written by make_normalization_ranges.py. First, last; in ascending order.')
    line = ''
    for first, last in ranges:
        entry = f'{{0x{first:X}, 0x{last:X}}},'
        if len(line) + len(entry) + 1 > 110:
            print(line)
            line = ''
        line += (' ' if line else '') + entry
    print(line)


if __name__ == '__main__':
    main()
