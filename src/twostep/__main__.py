"""`python -m twostep` is the command `twostep`."""

from twostep.cli import main

raise SystemExit(main())
