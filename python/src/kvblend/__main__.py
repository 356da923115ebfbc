"""python -m kvblend"""

from kvblend.programs import kvblend

kvblend()
