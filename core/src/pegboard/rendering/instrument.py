"""Rewrites a parsed template so that it accounts for what it does while it runs."""

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from pegboard.rendering.budget import Value

__all__ = ["Instrument"]


class Instrument(NodeTransformer):
    """Makes a template account for its blocks, its joins and the data it builds."""

    _BODIES = ("body", "else_")

    def generic_visit(self, node: nodes.Node, *args: Value, **kwargs: Value) -> nodes.Node:
        """Put an account at the head of every block of statements."""
        super().generic_visit(node, *args, **kwargs)
        for name in self._BODIES:
            body = getattr(node, name, None)
            if isinstance(body, list) and body:
                text = sum(map(_literal_chars, body))
                call = _call("spend", [nodes.Const(1 + text)], node.lineno)
                body.insert(0, nodes.ExprStmt(call, lineno=node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        """`a ~ b`: join under the budget."""
        self.generic_visit(node)
        return _call("concat_text", node.nodes, node.lineno)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        """Check what is compared with: a comparison ends where the smaller side does."""
        self.generic_visit(node)
        for operand in node.ops:
            if not isinstance(operand.expr, nodes.Const):
                operand.expr = _call("checked", [operand.expr], node.lineno)
        return node

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        """Check new tuples: they alone can be keys, and a key is hashed to its leaves."""
        self.generic_visit(node)
        return node if node.ctx != "load" else _call("checked", [node], node.lineno)


def _call(name: str, args: list[Value], lineno: int) -> nodes.Call:
    method = nodes.EnvironmentAttribute(name, lineno=lineno)
    return nodes.Call(method, args, [], None, None, lineno=lineno)


def _literal_chars(node: nodes.Node) -> int:
    if not isinstance(node, nodes.Output):
        return 0
    return sum(len(part.data) for part in node.nodes if isinstance(part, nodes.TemplateData))
