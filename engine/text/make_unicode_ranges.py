#!/usr/bin/env python3
"""Writes unicode_ranges.inc: the classes of code points that the pre-tokenizers' patterns tell apart.

Needs the database of Unicode 16.0, which Hugging Face tokenizers 0.23 matches with:
    pip install unicodedata2==16.0.0
    ./make_unicode_ranges.py > unicode_ranges.inc
"""
import unicodedata2 as database

VERSION = '16.0.0'
# Property White_Space (PropList.txt); it has been stable since Unicode 6.3.
WHITE_SPACE = {*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F,
               0x205F, 0x3000}
CLASSES = {'Lu': 'U', 'Lt': 'U', 'Ll': 'L', 'Lm': 'O', 'Lo': 'O', 'M': 'M', 'N': 'N', 'P': 'P', 'S': 'S'}


def char_class(code_point):
    if code_point in WHITE_SPACE:
        return 'W'
    category = database.category(chr(code_point))
    return CLASSES.get(category, CLASSES.get(category[0]))


def main():
    assert database.unidata_version == VERSION, f'Unicode {database.unidata_version}; needs {VERSION}'
    ranges = []
    for code_point in range(0x110000):
        name = char_class(code_point)
        if ranges and ranges[-1][2] == name and ranges[-1][1] == code_point - 1:
            ranges[-1][1] = code_point
        elif name:
            ranges.append([code_point, code_point, name])
    # Where upper and lower case alternate from one code point to the next: one range of class A for all.
    joined = []
    for first, last, name in ranges:
        previous = joined[-1] if joined else None
        if first == last and name in 'UL' and previous and previous[1] == first - 1:
            wanted = 'U' if (first - previous[0]) % 2 == 0 else 'L'
            if name == wanted and (previous[2] == 'A' or (previous[2] == 'U' and previous[0] == previous[1])):
                previous[1:] = [first, 'A']
                continue
        joined.append([first, last, name])
    print(f'// Unicode {VERSION}; written by make_unicode_ranges.py. First, last, class; in ascending order.')
    line = ''
    for first, last, name in joined:
        entry = f'{{0x{first:X}, 0x{last:X}, {name}}},'
        if len(line) + len(entry) + 1 > 110:
            print(line)
            line = ''
        line += (' ' if line else '') + entry
    print(line)


if __name__ == '__main__':
    main()
