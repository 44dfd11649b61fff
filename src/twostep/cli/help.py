"""The help texts. That of `train` is made from the settings themselves, so it lists every one."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from typing import Any, Literal, get_args, get_origin

from twostep.config import VOCABULARY, TrainingConfig, shipped_configs
from twostep.config.loading import Field, field_docs
from twostep.values import write

HELP = """\
twostep: PPO in two steps, collect and then learn.

  twostep train ENV_OR_YAML [--option value ...]   train an agent
  twostep resume [RUN] [--option value ...]        go on with a run that was stopped, or longer
  twostep eval [RUN] [--suite FILE] [--sample]     see how good a trained agent is
  twostep play [RUN_OR_REPLAY]                     watch it: a page for the browser, an animation
  twostep inspect [FILE_OR_FOLDER] [--out FILE]    what is in a rollout, a checkpoint or a run
  twostep tune ENV_OR_YAML --space lr,clip ...     search for settings that learn better
  twostep export [RUN] [--out FILE]                write it as ONNX: runs without twostep and torch
  twostep train --help                             every option, its default and what it means
  twostep --version

Examples:
  twostep train CartPole-v1
  twostep train Pendulum-v1 --lr 1e-3 --total_timesteps 200_000
  twostep train my_settings.yaml --agent.memory gru
  twostep train skirmish
  twostep train symbolic --env.kwargs.law kepler
  twostep eval runs
  twostep play runs
  twostep export runs --out policy.onnx

Exit codes: 0 done, 1 training failed, 2 wrong input; stopped by Ctrl-C 130, SIGTERM 143, SIGUSR1 138, SIGHUP 129.
A signal lets the update be finished and saved first; a second one stops at once."""

RESUME_HELP = """\
twostep resume [RUN_OR_CHECKPOINT] [--option value ...]

  RUN_OR_CHECKPOINT     a run's folder, or a folder of runs, of which the newest is taken; or one of the checkpoints in
                        a run's folder [runs]
  --total_timesteps N   where to stop, counted from the run's beginning [as configured]

Goes on in the run's folder as if it had never stopped: on a CPU every number is the same, bit for bit. Environments go
on in the middle of their episodes, or begin new ones where their state cannot be kept, which is said. Other options of
'twostep train' change the run from here on; agent, seed, environment and kind of optimizer cannot change. Another
--num_workers or --device changes nothing else; another --num_envs or --env.kwargs begins new episodes."""

EVAL_HELP = """\
twostep eval [RUN_OR_POLICY] [--suite FILE] [--episodes N] [--sample] [--seed N] [--device NAME] [--out FOLDER]

  RUN_OR_POLICY   a run's folder, or a folder of runs, of which the newest is taken; or one saved policy by its
                  folder or URI (file://, wandb://) [runs]
  --suite FILE    score it in all cases of a YAML file instead of its own environment; docs/evaluation.md
  --episodes N    episodes to play [as configured: trainer.eval_episodes]
  --sample        act as in training, by chance, instead of always taking the most likely action
  --seed N        what the episodes grow from [as configured, plus 1: not the episodes of training]
  --device NAME   where the network runs [as configured]
  --out FOLDER    where a suite's scores (JSON) and picture go [suites, in the run's folder]

A walking robot is told of by type of terrain, every difficulty that it was trained for as often as any other, with a
picture of the whole grid. A student who imitated a teacher is shown beside it, in the same episodes."""

PLAY_HELP = """\
twostep play [RUN_OR_REPLAY] [--out FOLDER] [--episodes N] [--seed N] [--no_animation] [--device NAME]

  RUN_OR_REPLAY    a replay (.npz), a run's folder, a folder of runs, of which the newest is taken, or a policy that
                   is saved in a run's folder [runs]
  --out FOLDER     where page and animation are written [beside the replay, or in the run's folder]
  --episodes N     how many episodes to play; a page shows the first match, an animation all episodes [1]
  --seed N         play anew instead of showing the newest replay; what the episodes grow from
  --no_animation   write the page only
  --device NAME    where the network runs [as configured]

A match of skirmish becomes a page that any browser plays, without a network and without other files: pause, scrub,
speed, the state of every unit; and an animation (.gif). A walking robot is filmed on every type of terrain, as hard
as it manages, and its successes are drawn for the whole grid. Other environments are filmed where they draw
themselves."""

INSPECT_HELP = """\
twostep inspect [FILE_OR_FOLDER] [--out FILE] [--no_plot]

  FILE_OR_FOLDER   a rollout (.safetensors), a folder of them, of which the newest is taken, a checkpoint,
                   a run's folder, or a folder of runs, of which the newest is taken [runs]
  --out FILE       where the picture of a rollout is written [beside the rollout, as .png]
  --no_plot        print only

'twostep train ENV --save_rollouts 20' keeps the newest rollouts in the run's folder. Of a rollout it says size,
episodes, returns, every column, what was done, how good the critic is, and in words what is remarkable."""

EXPORT_HELP = """\
twostep export [RUN_OR_POLICY] [--out FILE] [--masks] [--inputs N]

  RUN_OR_POLICY   a run's folder, or a folder of runs, of which the newest is taken; or one saved policy by its
                  folder or URI (file://, wandb://) [runs]
  --out FILE      where the file goes [policy.onnx, in the run's folder]
  --masks         let the file take masks that say which choices are allowed
  --inputs N      random inputs on which the file must agree with the policy [1000]

The file takes raw observations, one input per group, and normalises them itself; what the policy remembers goes in and
comes out; actions are the most likely ones, as the environment takes them. It is kept only where onnxruntime says what
PyTorch says. Needs: pip install 'twostep[export]'. More in docs/export.md."""

TUNE_HELP = """\
twostep tune ENV_OR_YAML [--space NAMES] [--trials N] [--workers N] [--option value ...]

  ENV_OR_YAML     what 'twostep train' takes; so do all other options here, which then hold in every trial
  --space NAMES   what is searched: names of settings, each with a range or values where the usual ones are not meant:
                  lr,clip=0.1/0.2/0.3,update_epochs=2..10 [lr,clip,ent,bptt]
  --grid          try every combination of a few values once; for lr,clip,ent,bptt these are 81
  --trials N      trainings to be tried [30, or all of the grid]
  --workers N     processes that train at the same time [1]
  --seeds N       trainings of different seeds per trial, whose mean counts [1]
  --metric NAME   what is to be large at the end, as metrics.jsonl calls it [mean_reward]
  --pruner NAME   what gives up on the way: median, halving or none [median]
  --out FOLDER    where all of it goes [tune-NAME, in the folder of runs]

The same command goes on with a study that was stopped, by Ctrl-C or a crash, with nothing lost: trainings under way
go on from what they saved. A trial that fails is noted, and the next one begins. At the end, and whenever it is
stopped: report.md, study.png, and best.yaml, which 'twostep train' takes. Needs: pip install 'twostep[tune]'."""

_TRAIN_HEAD = """\
twostep train ENV_OR_YAML [--option value ...]

  ENV_OR_YAML   an environment's id, a YAML file of settings, or the name of settings
                that ship with twostep and are taken for these ids by themselves:
{shipped}

Options are written --lr 1e-3, --lr=1e-3 or --ppo.lr 1e-3; hyphens are as good as
underscores. A flag needs no value: --normalize_obs; --no_tensorboard switches off.
Names from other programs (--learning_rate, --n_epochs) work too.
"""

_NAMES_OF_KINDS: dict[Any, str] = {int: "N", float: "X", str: "TEXT", bool: "", type(None): "none", Any: "VALUE"}


def train_help() -> str:
    """List every setting with its default and its documentation."""
    width = min(120, shutil.get_terminal_size().columns)
    shipped = textwrap.fill(", ".join(f"{name} ({env_id})" for name, env_id in shipped_configs().items()), width - 16)
    parts = [_TRAIN_HEAD.format(shipped=textwrap.indent(shipped, " " * 16))]
    about = field_docs(TrainingConfig)
    section = None
    for setting in VOCABULARY.fields.values():
        above = setting.path[0] if len(setting.path) > 1 else ""
        if above != section:
            section = above
            parts.append(f"\n{_bold(section)}: {about[section]}" if section else _bold("The run"))
        parts.append(_describe(setting, width))
    return "\n".join(parts)


def _describe(setting: Field, width: int) -> str:
    plain = setting.path[-1] not in VOCABULARY.only_dotted
    free_keys = VOCABULARY.has_free_keys(setting.path)
    name = f"--{setting.path[-1] if plain and not free_keys else setting.name}{'.NAME' if free_keys else ''}"
    takes = _takes(setting.annotation)
    default = write(setting.default) if setting.default != {} else "none"
    first = f"  {_bold(name)}{f' {takes}' if takes else ''}  [{default}]"
    doc = textwrap.fill(setting.doc, width, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return f"{first}\n{doc}"


def _takes(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return "|".join(str(choice) for choice in get_args(annotation))
    if get_origin(annotation) is tuple:
        kinds = [_takes(kind) for kind in get_args(annotation) if kind is not Ellipsis]
        return f"{kinds[0]},{kinds[0]}" + ("" if len(kinds) > 1 else ",...")
    if get_origin(annotation) is dict:
        return _takes(get_args(annotation)[1])
    members = [_takes(member) or "true|false" for member in get_args(annotation)]
    return "|".join(members) if members else _NAMES_OF_KINDS.get(annotation, "TEXT")


def _bold(text: str) -> str:
    return f"\033[1m{text}\033[0m" if sys.stdout.isatty() and "NO_COLOR" not in os.environ else text
