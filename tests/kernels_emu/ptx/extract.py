#!/usr/bin/env python3
"""extract.py: the PTX inside an object that nvcc has made for a virtual architecture, too, without compression.

    extract.py IN.o OUT.ptx

So the compiler's front end, which takes most of its time, runs once for the library and the emulator. The text is found
by its first line and ends at a zero byte; the form of the image around it is not read.
"""
import re
import sys

BEGIN = re.compile(rb'\.version\s+\d+\.\d+\s+\.target\s+sm_\d+\w*\b')


def main():
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    with open(sys.argv[1], 'rb') as file:
        image = file.read()
    found = [image[m.start():image.index(b'\0', m.start())] for m in BEGIN.finditer(image)]
    if len(found) != 1:
        print(f'extract.py: {len(found)} texts of PTX in {sys.argv[1]}, not one; was it compiled with '
              '--compress-mode=none?', file=sys.stderr)
        return 1
    with open(sys.argv[2], 'wb') as file:
        file.write(found[0].rstrip() + b'\n')
    return 0


if __name__ == '__main__':
    sys.exit(main())
