"""Scripts with which a shell completes the commands, options and methods of the command line."""

from __future__ import annotations

import argparse

from credax.inference import METHODS


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The completion script for a shell; ``eval "$(credax completion bash)"`` activates it."""
    commands = _commands(parser)
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](commands)


def _commands(parser: argparse.ArgumentParser) -> dict[str, list[str]]:
    """The options of each command."""
    found = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return {
        name: [
            option
            for action in sub._actions
            for option in action.option_strings
            if option.startswith("--")
        ]
        for name, sub in found.choices.items()
    }


def _bash(commands: dict[str, list[str]]) -> str:
    cases = "\n".join(
        f'    {name}) words="{" ".join(options)}" ;;' for name, options in commands.items()
    )
    return f"""_credax() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}" words=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{" ".join(commands)}" -- "$current")); return
  fi
  if [ "$previous" = "--method" ]; then
    COMPREPLY=($(compgen -W "{" ".join(METHODS)}" -- "$current")); return
  fi
  case "${{COMP_WORDS[1]}}" in
{cases}
  esac
  case "$current" in
    -*) COMPREPLY=($(compgen -W "$words" -- "$current")) ;;
    *) COMPREPLY=($(compgen -f -- "$current")) ;;
  esac
}}
complete -o filenames -F _credax credax
"""


def _zsh(commands: dict[str, list[str]]) -> str:
    return f"autoload -U +X bashcompinit && bashcompinit\n{_bash(commands)}"


def _fish(commands: dict[str, list[str]]) -> str:
    first = f"complete -c credax -n __fish_use_subcommand -f -a '{' '.join(commands)}'"
    # -x: the option takes one of these words, and no file name.
    values = {"--method": f" -x -a '{' '.join(METHODS)}'"}
    lines = [
        f"complete -c credax -n '__fish_seen_subcommand_from {name}' -l {option.removeprefix('--')}"
        f"{values.get(option, '')}"
        for name, options in commands.items()
        for option in options
    ]
    return "\n".join([first, *lines, ""])
