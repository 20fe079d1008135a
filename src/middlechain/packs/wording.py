"""What a prompt says to which model: its template and parameters, and what its `model_overrides` make of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from middlechain.chain import Next, observes
from middlechain.chat import ChatCall, ChatReply, Model, Settings
from middlechain.packs.format import ModelOverride, Parameters, PromptPart, read
from middlechain.packs.issues import Place
from middlechain.packs.template import Template, check_template, parse_template, render

__all__ = ["Draft", "Drafts", "ModelSettings", "Wording", "Wordings", "merged", "read_drafts"]


@dataclass(frozen=True, slots=True)
class Wording:
    """What one model gets.

    Args:
        text: the system prompt.
        settings: how it is to answer.
    """

    text: str
    settings: Settings


@dataclass(frozen=True, slots=True)
class Wordings:
    """What each model gets.

    Args:
        usual: what a model gets that is not named.
        special: by the names of models.
    """

    usual: Wording
    special: Mapping[str, Wording]

    def of(self, model: Model | str | None) -> Wording:
        """What that model gets: a name counts with its prefix, as in `openai:gpt-5`, and without."""
        name = model if isinstance(model, str) else getattr(model, "name", "")
        return self.special.get(name) or self.special.get(name.partition(":")[2]) or self.usual

    def with_settings(self, settings: Settings) -> Wordings:
        """The same, with settings that go before those of the pack."""
        special = {name: Wording(one.text, merged(one.settings, settings)) for name, one in self.special.items()}
        return Wordings(Wording(self.usual.text, merged(self.usual.settings, settings)), special)


@dataclass(frozen=True, slots=True)
class Draft:
    """A wording without the values of variables.

    Args:
        template: the system prompt.
        settings: how the model is to answer.
        place: in the pack.
    """

    template: Template
    settings: Settings
    place: Place

    def fill(self, values: Mapping[str, Any], fragments: Mapping[str, Template], place: Place) -> Wording:
        """The wording with the values filled in. Where a value lacks what the template refers to, that is noted."""
        try:
            return Wording(render(self.template, values, fragments), self.settings)
        except LookupError as error:
            place.at(*self.place.path).error(f"{error.args[0]}; give a value that has it")
            return Wording("", self.settings)


@dataclass(frozen=True, slots=True)
class Drafts:
    """The drafts of a prompt, as `Wordings` has the wordings."""

    usual: Draft
    special: Mapping[str, Draft]

    def fill(self, values: Mapping[str, Any], fragments: Mapping[str, Template], place: Place) -> Wordings:
        """What each model gets.

        Args:
            values: of all variables.
            fragments: of the pack.
            place: the root, for what is wrong.
        """
        special = {name: one.fill(values, fragments, place) for name, one in self.special.items()}
        return Wordings(self.usual.fill(values, fragments, place), special)


def read_drafts(
    prompt: PromptPart, types: Mapping[str, str], fragments: Mapping[str, Template], place: Place
) -> Drafts:
    """The templates and parameters of a prompt. What is wrong with them is noted.

    Args:
        prompt: whose they are.
        types: of the variables that it declares.
        fragments: of the pack.
        place: of the prompt.
    """

    def template(text: str, here: Place) -> Template:
        parts = parse_template(text, here)
        check_template(parts, types, fragments, here)
        return parts

    here = place.at("system_template")
    usual = Draft(template(prompt.system_template, here), _settings(prompt.parameters, place.at("parameters")), here)
    special: dict[str, Draft] = {}
    for name, data in prompt.model_overrides.items():
        here = place.at("model_overrides", name)
        part = read(ModelOverride, data, here)
        if part is None:
            continue
        own = part.system_template
        middle = usual.template if own is None else template(own, here.at("system_template"))
        before = template(part.system_template_prefix, here.at("system_template_prefix"))
        after = template(part.system_template_suffix, here.at("system_template_suffix"))
        settings = merged(usual.settings, _settings(part.parameters, here.at("parameters")))
        special[name] = Draft((*before, *middle, *after), settings, here)
    return Drafts(usual, special)


_EXTRA = ("top_k", "frequency_penalty", "presence_penalty")  # the request has them, and Settings has no field for them


def _settings(data: object, place: Place) -> Settings:
    part = None if data is None else read(Parameters, data, place)
    if part is None:
        return Settings()
    if part.top_k is not None:
        place.at("top_k").note("this is sent as it is, and OpenAI's own server refuses it; take it out for that one")
    extra = {name: value for name in _EXTRA if (value := getattr(part, name)) is not None}
    return Settings(temperature=part.temperature, top_p=part.top_p, max_tokens=part.max_tokens, extra=extra)


def merged(settings: Settings, over: Settings) -> Settings:
    """The settings with what the others say in place of what they say."""
    said = {one.name: value for one in fields(over) if (value := getattr(over, one.name)) is not None}
    return replace(settings, **{**said, "extra": {**settings.extra, **over.extra}})


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """A layer for an agent whose model is the app's: the settings for that model, where the pack has some of its own.

    Where it belongs: among the agent's layers, anywhere. What a layer further out has set is kept. State: none. Deltas:
    passed on untouched.

    Args:
        wordings: what each model gets.
    """

    wordings: Wordings

    def __repr__(self) -> str:
        return f"ModelSettings({', '.join(self.wordings.special)})"

    @observes
    async def chat(self, call: ChatCall, next: Next[ChatCall, ChatReply]) -> None:
        """Set what that model is to have, where nobody has set another value."""
        usual, own = self.wordings.usual.settings, self.wordings.of(call.ctx.app.model).settings
        changed = {
            one.name: getattr(own, one.name)
            for one in fields(own)
            if getattr(call.settings, one.name) == getattr(usual, one.name)
        }
        await next(call.replace(settings=replace(call.settings, **changed)))
