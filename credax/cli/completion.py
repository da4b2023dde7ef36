"""Scripts with which a shell completes the commands, their options, and the values of options."""

from __future__ import annotations

import argparse

from credax.cli import options
from credax.inference import METHODS


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The completion script for a shell; ``eval "$(credax completion bash)"`` activates it."""
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](_commands(parser))


Options = dict[str, list[str]]
"""The options of a command, each with the values that it can take; empty if any text will do."""


def _commands(parser: argparse.ArgumentParser) -> dict[str, Options]:
    """The options of each command. Arguments without a name have names without dashes."""
    found = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    known = {
        "--method": [*METHODS, "best"],
        "--methods": list(METHODS),
        "--prior": list(options.priors()),
        "--likelihood": list(options.likelihoods()),
    }
    return {
        name: {
            option: known.get(option) or [str(choice) for choice in action.choices or ()]
            for action in sub._actions
            for option in [
                *action.option_strings,
                *([] if action.option_strings else [action.dest]),
            ]
            if option.startswith("--") or action.choices
        }
        for name, sub in found.choices.items()
    }


def _bash(commands: dict[str, Options]) -> str:
    named = {
        name: [option for option in found if option.startswith("--")]
        for name, found in commands.items()
    }
    cases = "\n".join(f'    {name}) words="{" ".join(found)}" ;;' for name, found in named.items())
    values = {
        option: found
        for known in commands.values()
        for option, found in known.items()
        if found and option.startswith("--")
    }
    choices = "\n".join(
        f'    {option}) COMPREPLY=($(compgen -W "{" ".join(found)}" -- "$current")); return ;;'
        for option, found in values.items()
    )
    plain = "\n".join(
        f'    {name}) COMPREPLY=($(compgen -W "{" ".join(found)}" -- "$current")); return ;;'
        for name, known in commands.items()
        for option, found in known.items()
        if not option.startswith("--")
    )
    return f"""_credax() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}" words=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{" ".join(commands)} --help --version" -- "$current")); return
  fi
  case "$previous" in
{choices}
  esac
  case "${{COMP_WORDS[1]}}" in
{cases}
  esac
  case "$current" in
    -*) COMPREPLY=($(compgen -W "$words" -- "$current")); return ;;
  esac
  case "${{COMP_WORDS[1]}}" in
{plain}
  esac
  COMPREPLY=($(compgen -f -- "$current"))
}}
complete -o filenames -F _credax credax
"""


def _zsh(commands: dict[str, Options]) -> str:
    return f"autoload -U +X bashcompinit && bashcompinit\n{_bash(commands)}"


def _fish(commands: dict[str, Options]) -> str:
    first = f"complete -c credax -n __fish_use_subcommand -f -a '{' '.join(commands)}'"
    lines = []
    for name, known in commands.items():
        begin = f"complete -c credax -n '__fish_seen_subcommand_from {name}'"
        for option, found in known.items():
            # -x: the option takes one of these words, and no file name.
            values = f" -x -a '{' '.join(found)}'" if found else ""
            if option.startswith("--"):
                lines.append(f"{begin} -l {option.removeprefix('--')}{values}")
            else:
                lines.append(f"{begin} -f -a '{' '.join(found)}'")
    return "\n".join([first, *lines, ""])
