"""All that may be wrong with a pack, found in one pass; what is right is kept, ready to make agents of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from middlechain.guards import Guardrails
from middlechain.packs.format import PromptPart, Root, TemplateEngine, read
from middlechain.packs.issues import Issue, Place
from middlechain.packs.pack_tools import PackTool, check_names, read_tools
from middlechain.packs.policy import ToolPolicy, read_policy
from middlechain.packs.template import Template, check_fragments, parse_template
from middlechain.packs.validators import read_validators
from middlechain.packs.variables import Variable, read_variables
from middlechain.packs.wording import Drafts, read_drafts

__all__ = ["Examined", "Prompt", "examine"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt that was read.

    Args:
        name: its key in the pack.
        description: what it is for.
        tools: the names of its tools.
        variables: by name.
        policy: how tools may be used.
        drafts: its templates and parameters.
        guards: its validators.
    """

    name: str
    description: str
    tools: tuple[str, ...]
    variables: Mapping[str, Variable]
    policy: ToolPolicy
    drafts: Drafts
    guards: Guardrails


@dataclass(frozen=True, slots=True)
class Examined:
    """A pack that was read.

    Args:
        issues: all that there is to know about it.
        prompts: by name, without those that are no objects.
        tools: by name.
        fragments: by name.
    """

    issues: tuple[Issue, ...]
    prompts: Mapping[str, Prompt]
    tools: Mapping[str, PackTool]
    fragments: Mapping[str, Template]


def examine(data: Mapping[str, Any]) -> Examined:
    """Read a pack.

    Args:
        data: what `reading.parse` gave, so an object with an object of prompts.
    """
    place = Place()
    root = read(Root, data, place) or Root()
    _check_engine(root.template_engine, place.at("template_engine"))
    fragments = _fragments(root.fragments, place.at("fragments"))
    tools = read_tools(root.tools, place.at("tools"))
    prompts = {
        name: prompt
        for name, one in root.prompts.items()
        if (prompt := _prompt(name, one, tools, fragments, place.at("prompts", name))) is not None
    }
    _note_unused(tools, prompts, place.at("tools"))
    _note_unsupported(root, _OF_PACK, place)
    return Examined(tuple(place.issues), prompts, tools, fragments)


def _check_engine(data: object, place: Place) -> None:
    engine = None if data is None else read(TemplateEngine, data, place)
    if engine is None:
        return
    if "".join(engine.syntax.split()) != "{{variable}}":
        place.at("syntax").error(f"templates are written as {engine.syntax!r:.60}; write them as '{{{{variable}}}}'")
    for index, feature in enumerate(engine.features):
        if feature not in {"basic_substitution", "fragments"}:
            place.at("features", index).unsupported(
                f"templates have variables and fragments, and no {feature}; a template that uses them is refused"
            )


def _fragments(data: Mapping[str, object], place: Place) -> dict[str, Template]:
    found: dict[str, Template] = {}
    for name, text in data.items():
        if not isinstance(text, str):
            place.at(name).error(f"the fragment is {text!r:.60}; write a text")
        found[name] = parse_template(text if isinstance(text, str) else "", place.at(name))
    check_fragments(found, place)
    return found


def _prompt(
    name: str, data: object, tools: Mapping[str, PackTool], fragments: Mapping[str, Template], place: Place
) -> Prompt | None:
    part = read(PromptPart, data, place)
    if part is None:
        return None
    variables = read_variables(part.variables, place.at("variables"))
    for double in variables.keys() & fragments.keys():
        place.at("variables").error(f"{double!r} is a variable, and a fragment of the pack too; rename one of them")
    types = {variable.name: variable.type for variable in variables.values()}
    check_names(part.tools, tools, place.at("tools"))
    prompt = Prompt(
        name,
        part.description,
        tuple(part.tools),
        variables,
        read_policy(part.tool_policy, tools, place.at("tool_policy")),
        read_drafts(part, types, fragments, place),
        read_validators(part.validators, place.at("validators")),
    )
    _note_unsupported(part, _OF_PROMPT, place)
    return prompt


_EVALS = "is not run; judge texts with a guard, or run it elsewhere"
_OF_PACK = {
    "evals": _EVALS,
    "workflow": "is not followed; choose the prompt in your code",
    "agents": "are not made; make one of each prompt with pack.agent(...)",
    "skills": "is not loaded; put it into a system_template, or give a tool that reads it",
    "compositions": "are not run; call the agents in your code",
}
_OF_PROMPT = {
    "evals": _EVALS,
    "media": "are not checked; give images, audio and files as parts of the input",
    "pipeline": "is not built; write its stages as layers",
}


def _note_unsupported(part: Root | PromptPart, fixes: Mapping[str, str], place: Place) -> None:
    """Note what the pack has and this library does not do: each of several by itself."""
    for name, fix in fixes.items():
        value = getattr(part, name)
        if isinstance(value, list):
            for index, one in enumerate(value):
                place.at(name, index).unsupported(f"the {name.removesuffix('s')}{_called(one)} {fix}")
        elif value is not None:
            place.at(name).unsupported(f"the {name} {fix}")


def _called(data: object) -> str:
    """The name of one of several, to stand after what it is."""
    name = (data.get("id") or data.get("name") or data.get("path")) if isinstance(data, Mapping) else data
    return f" {name!r:.60}" if isinstance(name, str) else ""


def _note_unused(tools: Mapping[str, object], prompts: Mapping[str, Prompt], place: Place) -> None:
    for name in tools:
        if not any(name in prompt.tools for prompt in prompts.values()):
            place.at(name).note("no prompt lists this tool, so no agent has it; list it in the tools of a prompt")
