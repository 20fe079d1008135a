"""One calling contract for LLM agents: middleware and hooks that hold in `run` and in `stream` alike.

Start with `App` and `Agent`; `chain.py` is the room to read first.
"""

from typing import TYPE_CHECKING, Any

from middlechain.agent import Agent, AgentHooks
from middlechain.app import App, run
from middlechain.chain import Next, observes, repeats
from middlechain.chat import ChatCall, ChatReply, Model, Settings
from middlechain.context import Context
from middlechain.conversation import Conversation
from middlechain.errors import (
    BadRequest,
    ConfigurationError,
    ContractError,
    FatalToolError,
    GuardrailDenied,
    IncompleteReply,
    LimitExceeded,
    MiddlechainError,
    ModelError,
    ModelTimeout,
    ModelUnavailable,
    NextCalledAgain,
    NextCalledLate,
    NothingReturned,
    OutputError,
    RateLimited,
    StreamDenied,
    ToolError,
    WrongReturn,
)
from middlechain.events import (
    AgentFinished,
    AgentStarted,
    CustomEvent,
    Event,
    GuardrailFired,
    LimitReached,
    ModelFinished,
    ModelStarted,
    ReasoningDelta,
    RunFinished,
    RunStarted,
    TextDelta,
    TextReset,
    ToolFinished,
    ToolStarted,
)
from middlechain.explanation import Chain
from middlechain.flows import Flow, answered, called_tool, loop, parallel, sequence
from middlechain.guards import Allow, Deny, Enforced, Guardrails, Rewrite, Validation, guardrail
from middlechain.layers import Layers
from middlechain.limits import Limits, Usage
from middlechain.messages import (
    Assistant,
    Audio,
    File,
    Image,
    Input,
    Message,
    Part,
    System,
    Text,
    ToolMessage,
    ToolUse,
    User,
)
from middlechain.results import AgentCall, Result, RunCall
from middlechain.streams import Stream
from middlechain.tool_calls import ToolCall, ToolResult
from middlechain.tools import Tool, ToolOutput, tool

if TYPE_CHECKING:
    from middlechain.models.openai import OpenAIModel

__all__ = [
    "Agent",
    "AgentCall",
    "AgentFinished",
    "AgentHooks",
    "AgentStarted",
    "Allow",
    "App",
    "Assistant",
    "Audio",
    "BadRequest",
    "Chain",
    "ChatCall",
    "ChatReply",
    "ConfigurationError",
    "Context",
    "ContractError",
    "Conversation",
    "CustomEvent",
    "Deny",
    "Enforced",
    "Event",
    "FatalToolError",
    "File",
    "Flow",
    "GuardrailDenied",
    "GuardrailFired",
    "Guardrails",
    "Image",
    "Input",
    "IncompleteReply",
    "Layers",
    "LimitExceeded",
    "LimitReached",
    "Limits",
    "Message",
    "MiddlechainError",
    "Model",
    "ModelError",
    "ModelFinished",
    "ModelStarted",
    "ModelTimeout",
    "ModelUnavailable",
    "Next",
    "NextCalledAgain",
    "NextCalledLate",
    "NothingReturned",
    "OpenAIModel",
    "OutputError",
    "Part",
    "RateLimited",
    "ReasoningDelta",
    "Result",
    "Rewrite",
    "RunCall",
    "RunFinished",
    "RunStarted",
    "Settings",
    "Stream",
    "StreamDenied",
    "System",
    "Text",
    "TextDelta",
    "TextReset",
    "Tool",
    "ToolCall",
    "ToolError",
    "ToolFinished",
    "ToolMessage",
    "ToolOutput",
    "ToolResult",
    "ToolStarted",
    "ToolUse",
    "Usage",
    "User",
    "Validation",
    "WrongReturn",
    "answered",
    "called_tool",
    "guardrail",
    "loop",
    "observes",
    "parallel",
    "repeats",
    "run",
    "sequence",
    "tool",
]


if not TYPE_CHECKING:  # or a type checker would take any name for one

    def __getattr__(name: str) -> Any:
        if name == "OpenAIModel":  # imported where it is used, as the package behind it is
            from middlechain.models.openai import OpenAIModel

            return OpenAIModel
        raise AttributeError(f"module 'middlechain' has no attribute {name!r}")
