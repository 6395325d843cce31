"""The grammar of arithmetic expressions of ReTran (ACL 2025). ``values`` evaluates expressions, ``drawing`` samples
them, ``tasks.expression`` is the task."""

import string

# EQ → VAL OP VAL | ( VAL OP VAL ); VAL → EQ | NUM; NUM → 0 | NUMH NUMT; NUMH → d | -d, d from 1 to 9; NUMT → d NUMT |
# nothing, d from 0 to 9; digits are uniform. Finally `--` is replaced by `+`, and `+-` by `-`.
# The probabilities of the rules:
PARENTHESES = 0.5  # EQ → ( VAL OP VAL )
NESTED = 0.46  # VAL → EQ
OPERATORS = {"+": 0.35, "-": 0.35, "*": 0.3}  # OP
ZERO = 0.05  # NUM → 0
NEGATIVE = 0.5  # NUMH → -d
LONGER = 0.2  # NUMT → d NUMT

SYMBOLS = (*string.digits, *OPERATORS, "(", ")")
PLUS, MINUS, TIMES, OPEN, CLOSE = range(10, 15)  # ids
