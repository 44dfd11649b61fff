"""The command `twostep`: train an agent, look at what it learned.

Nothing here imports torch before the input is known to be right, so help and complaints come at once. Exit codes:
0 done, 1 training failed, 2 wrong input, 128 and its number where a signal stopped a run: 130 for Ctrl-C, 143 for
SIGTERM, 138 for SIGUSR1, 129 for SIGHUP.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from twostep.cli.help import EVAL_HELP, HELP, INSPECT_HELP, PLAY_HELP, RESUME_HELP, train_help
from twostep.cli.options import UsageError, parse_eval, parse_inspect, parse_play, parse_resume, parse_train
from twostep.errors import TwostepError
from twostep.values import show, suggest

COMMANDS = ("train", "resume", "eval", "play", "inspect")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; wrong input is answered with one line on stderr."""
    try:
        code = _dispatch(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except TwostepError as error:
        complain(error)
        return 2
    except KeyboardInterrupt:
        complain("stopped.")
        return 130
    except BrokenPipeError:
        # Whoever read the output has gone (`twostep train --help | head`); the interpreter must not try again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def complain(what: object) -> None:
    """Say what is wrong in one line on stderr."""
    print("twostep:", " ".join(str(what).split()), file=sys.stderr)


def _dispatch(words: list[str]) -> int:
    if not words:
        raise UsageError("say what to do, such as 'twostep train CartPole-v1'; 'twostep --help' tells more.")
    command, rest = words[0], words[1:]
    if command in ("-h", "--help", "help"):
        print(HELP)
        return 0
    if command in ("-V", "--version", "version"):
        from twostep import __version__

        print(f"twostep {__version__}")
        return 0
    if command not in COMMANDS:
        near = suggest(command, list(COMMANDS))
        raise UsageError(f"{show(command)} is no command.{near} Commands: {', '.join(COMMANDS)}.")
    if "-h" in rest or "--help" in rest:
        print(train_help() if command == "train" else _HELP_OF[command])
        return 0
    if command == "train":
        task, changes = parse_train(rest)
        from twostep.cli.training import load_config, run_training

        return run_training(load_config(task, changes))
    if command == "resume":
        run, changes = parse_resume(rest)
        from twostep.cli.training import resume_training

        return resume_training(run, changes)
    if command == "play":
        wish = parse_play(rest)
        from twostep.cli.playing import run_play

        return run_play(wish)
    if command == "inspect":
        asked = parse_inspect(rest)
        from twostep.cli.inspecting import run_inspection

        return run_inspection(asked)
    request = parse_eval(rest)
    from twostep.cli.evaluating import run_evaluation

    return run_evaluation(request)


_HELP_OF = {"resume": RESUME_HELP, "eval": EVAL_HELP, "play": PLAY_HELP, "inspect": INSPECT_HELP}


__all__ = ["main"]
