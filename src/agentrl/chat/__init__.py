"""Messages to token ids and back, exactly."""

from agentrl.chat.base import Extension, Renderer
from agentrl.chat.load import load_renderer
from agentrl.chat.reply import parse_reply
from agentrl.chat.template import TemplateRenderer

__all__ = ["Extension", "Renderer", "TemplateRenderer", "load_renderer", "parse_reply"]
