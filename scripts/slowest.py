"""Shows the slowest tests: slowest.py [how many] report.xml ... (JUnit reports of rust_test.py and pytest)."""

import sys
from pathlib import Path
from xml.etree import ElementTree


def main(words: list[str]) -> None:
    count = int(words.pop(0)) if words and words[0].isdigit() else 10
    found = []
    for report in filter(Path.exists, map(Path, words)):
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            found.append((float(case.get("time", 0)), f"{case.get('classname')} {case.get('name')}"))
    print(f"the {count} slowest of {len(found)} tests:")
    for seconds, name in sorted(found, reverse=True)[:count]:
        print(f"  {seconds:6.1f} s  {name}")


if __name__ == "__main__":
    main(sys.argv[1:])
