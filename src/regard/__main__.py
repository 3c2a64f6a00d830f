"""python -m regard"""

from regard.cli import run

run()
