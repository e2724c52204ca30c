"""Seeds of fuzz targets: a text file of hexadecimal lines in seeds/, a folder of files for libFuzzer.

seeds.py unpack TARGET         seeds/TARGET.hex into corpus/TARGET/
seeds.py pack TARGET FOLDER    the files of FOLDER into seeds/TARGET.hex; lines with a remark are kept
"""

import hashlib
import sys
from pathlib import Path

HERE = Path(__file__).parent


def lines(target: str) -> list[str]:
    path = HERE / "seeds" / f"{target}.hex"
    return path.read_text().splitlines() if path.exists() else []


def unpack(target: str) -> None:
    for line in lines(target):
        seed = bytes.fromhex(line.split("#")[0].strip())
        if seed:
            (HERE / "corpus" / target / f"seed-{hashlib.sha1(seed).hexdigest()}").write_bytes(seed)


def pack(target: str, folder: str) -> None:
    remarks = [line for line in lines(target) if "#" in line]
    found = {file.read_bytes().hex() for file in Path(folder).iterdir()}
    short = sorted(filter(None, found), key=lambda text: (len(text), text))
    (HERE / "seeds" / f"{target}.hex").write_text("\n".join([*remarks, *short]) + "\n")
    print(f"fuzz: {len(short)} seeds of {target}, the longest of {len(short[-1]) // 2} bytes")


if __name__ == "__main__":
    {"unpack": unpack, "pack": pack}[sys.argv[1]](*sys.argv[2:])
