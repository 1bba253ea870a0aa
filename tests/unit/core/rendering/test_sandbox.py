import time

import pytest
from jinja2.exceptions import TemplateError

from pegboard.rendering.budget import Budget, TemplateLimitError
from pegboard.rendering.sandbox import BoundedEnvironment

NESTED = (
    "{% set ns = namespace(x=[1]) %}"
    "{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
)
NAMES = (
    "{% set ns = namespace(x=1) %}"
    "{% for i in range(60) %}{% set ns.x = namespace(a=ns.x, b=ns.x) %}{% endfor %}"
)
GROW = "{% set ns = namespace(x='aa') %}{% for i in range(90) %}{% set ns.x = GROWN %}{% endfor %}"

#: Templates that would take gigabytes, or hours, without bounds.
HOSTILE = [
    "{{ ('a' * 10 ** 15)|length }}",
    "{{ ([1] * 10 ** 15)|length }}",
    "{{ (10 ** 15 * (1,))|length }}",
    "{{ 10 ** 1000000000 }}",
    "{{ 2 ** (2 ** 40) }}",
    "{% set ns = namespace(x=9) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "{% for i in range(1000000000) %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) if range(99999)|list|length > 5 %}{% endfor %}",
    GROW.replace("GROWN", "ns.x ~ ns.x"),
    GROW.replace("GROWN", "ns.x + ns.x"),
    GROW.replace("GROWN", "ns.x * 2"),
    GROW.replace("GROWN", "ns.x.replace('a', ns.x)"),
    GROW.replace("GROWN", "ns.x|replace('a', ns.x)"),
    GROW.replace("GROWN", "[ns.x, ns.x]|join"),
    GROW.replace("GROWN", "ns.x.join([ns.x, ns.x])"),
    GROW.replace("GROWN", "'%s%s' % (ns.x, ns.x)"),
    GROW.replace("GROWN", "'%s%s'|format(ns.x, ns.x)"),
    GROW.replace("GROWN", "'{}{}'.format(ns.x, ns.x)"),
    "{% set ns = namespace(x='ab') %}{% for i in range(90) %}"
    "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}",
    "{% macro twice(x) %}{{ x }}{{ x }}{% endmacro %}"
    "{% set ns = namespace(x='ab') %}{% for i in range(90) %}"
    "{% set ns.x = twice(ns.x) %}{% endfor %}",
    "{{ 'a'.center(10 ** 15)|length }}",
    "{{ 'a'.ljust(10 ** 15)|length }}",
    "{{ 'a'.zfill(10 ** 15)|length }}",
    "{{ 'a'|center(10 ** 15)|length }}",
    "{{ 'a\nb'|indent(10 ** 15)|length }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' % (1000000000, 1) }}",
    "{{ '%1000000000d'|format(1) }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ '{:{}}'.format(1, 1000000000) }}",
    "{{ 1.5|round(1000000000, 'ceil') }}",
    "{{ [[1], [2]]|sum(start=[]) }}",
    "{{ [1]|tojson(indent=1000000000) }}",
    "{{ strftime_now('%1000000000d') }}",
    "{{ (1).to_bytes(1000000000, 'big') }}",
    "{{ lipsum(n=1000000000) }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% for a in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    "{% for i in range(99999) %}" + "y" * 99_999 + "{% endfor %}",
    "{% macro m() %}{% for i in range(99999) %}" + "y" * 99_999 + "{% endfor %}{% endmacro %}"
    "{{ m()|length }}",
    NESTED + "{{ ns.x }}",
    NESTED + "{{ ns.x ~ '' }}",
    NESTED + "{{ ns.x|string }}",
    NESTED + "{{ ns.x|tojson }}",
    NESTED + "{{ ns.x|join }}",
    NESTED + "{{ '%s' % [ns.x] }}",
    NESTED + "{{ '{}'.format(ns.x) }}",
    NESTED + "{{ ns.x == ns.x[0] }}",
    NESTED + "{{ ns.x == ns.x[0] == 1 }}",
    NESTED + "{{ ns.x is eq(ns.x[0]) }}",
    NESTED + "{{ ns.x in [ns.x[0]] }}",
    NESTED + "{{ [ns.x].index(ns.x[0]) }}",
    NESTED + "{{ [ns.x, ns.x[0]]|sort|length }}",
    NESTED + "{{ [ns.x]|map('string')|list }}",
    NESTED + "{{ [[ns.x]]|selectattr(0, 'eq', ns.x[0])|list }}",
    NESTED + "{% for a in [1, 2] %}{{ loop.changed([ns.x]) }}{% endfor %}",
    NESTED.replace("[", "(").replace("]", ")") + "{{ {ns.x: 1} }}",
    NAMES + "{{ ns.x }}",
    NAMES + "{{ ns.x|string }}",
    NAMES + "{{ '%s' % ns.x }}",
    "{% set s = 'a' * 10000000 %}{% for i in range(99999) %}"
    "{% if s.upper() == s.lower() %}{% endif %}{% endfor %}",
]

ESCAPES = [
    "{{ ''.__class__.__mro__ }}",
    "{{ messages.__class__.__mro__ }}",
    "{{ messages.__init__.__globals__ }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ namespace.__mro__ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__globals__ }}",
    "{{ self.__init__.__globals__ }}",
    "{{ joiner.__init__.__globals__ }}",
    "{{ range.__self__.call }}",
    "{{ dict.__self__.from_string }}",
    "{{ (messages|map('upper')).gi_frame.f_globals }}",
    "{% macro m() %}{% endmacro %}{{ m._environment.from_string }}",
    "{% for m in messages %}{{ loop._iterator.gi_frame }}{% endfor %}",
    "{{ messages|attr('__class__') }}",
    "{{ ''|format.__class__ }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'role': 'x'}) }}",
    "{{ messages[0].pop('role') }}",
    "{{ messages.clear() }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{% extends 'base' %}",
    "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
    "{{ namespace(__init__=1) }}",
    "{{ '{0.__class__.__mro__[1]}'.format('')|length > 99 or ''.nope() }}",
    "{{ messages|map(attribute='__class__.__mro__')|join }}",
]


def rendered(source: str, budget: Budget | None = None, **variables: object) -> str:
    environment = BoundedEnvironment()
    variables.setdefault("messages", [{"role": "user", "content": "hi"}])
    return environment.render(environment.from_string(source), variables, budget or Budget())


@pytest.mark.parametrize("source", HOSTILE)
def test_hostile_template_is_stopped_before_it_grows(source: str) -> None:
    start = time.monotonic()
    with pytest.raises((TemplateError, TypeError, RecursionError)):
        rendered(source, Budget(seconds=1.5))
    assert time.monotonic() - start < 30  # generous: without bounds it would be hours


@pytest.mark.parametrize("source", ESCAPES)
def test_sandbox_gives_nothing_of_python_away(source: str) -> None:
    messages = [{"role": "user", "content": "hi"}]
    try:
        text = rendered(source, messages=messages)
    except (TemplateError, TypeError, AttributeError):
        text = ""
    assert text in ("", "False")
    assert messages == [{"role": "user", "content": "hi"}]


def test_time_is_up_even_for_a_template_that_makes_nothing() -> None:
    with pytest.raises(TemplateLimitError, match="seconds"):
        rendered("{% for i in range(9) %}{% endfor %}{% if 1 %}x{% endif %}", Budget(seconds=-1.0))


def test_text_of_a_long_conversation_fits_the_budget() -> None:
    source = (
        "{% for m in messages %}{{ m.role ~ ': ' ~ m.content|trim }}"
        "{{ (messages|length - 1) - loop.index0 }}{% if m.content.startswith('x') %}{% endif %}\n"
        "{% endfor %}{{ messages|tojson|length }}"
    )
    messages = [{"role": "user", "content": "word " * 100}] * 2000
    assert len(rendered(source, messages=messages)) > 1_000_000


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ [3, 1, 2]|sort|join(',') }}", "1,2,3"),
        ("{% for i in range(5) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "012"),
        (
            "{% for i in range(4) %}{% if i % 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}",
            "02",
        ),
        ("{% generation %}a{{ 1 }}{% endgeneration %}b", "a1b"),
        ("{% macro g(obj, self_=2) %}[{{ obj }}{{ self_ }}]{% endmacro %}{{ g(obj=1) }}", "[12]"),
        ("{% macro w() %}<{{ caller() }}>{% endmacro %}{% call w() %}x{% endcall %}", "<x>"),
        ("{% set x %}a{{ 1 }}{% endset %}{{ x }}", "a1"),
        ("{% filter upper %}q{% endfilter %}", "Q"),
        ("{{ dict(a=1).items()|list }}", "[('a', 1)]"),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}", "a1"),
        ("{{ '%s-%d' % ('a', 3) }}{{ '{}-{x:>3}'.format(1, x=2) }}", "a-31-  2"),
        ("{{ messages|map(attribute='role')|list == ['user'] }}", "True"),
        ("{{ messages|selectattr('role', 'equalto', 'user')|list|length }}", "1"),
        ("{{ {'b': '<é>', 'a': [1, none]}|tojson }}", '{"b": "<é>", "a": [1, null]}'),
        ("{{ {'b': 1, 'a': 2}|tojson(sort_keys=true, separators=(',', ':')) }}", '{"a":2,"b":1}'),
        ("{{ 'a,b'.split(',')[-1] }}{{ ' x '.strip() }}{{ 'ab'[::-1] }}", "bxba"),
        ("{{ missing }}|{{ missing is defined }}|{{ missing|default('d') }}", "|False|d"),
        ("{{ none }}{{ true }}{{ 1.5 }}{{ 7 // 2 }}{{ 7 % 4 }}{{ 2 ** 10 }}", "NoneTrue1.5331024"),
        ("{{ cycler('a', 'b').next() }}{% set j = joiner(',') %}{{ j() }}x{{ j() }}y", "ax,y"),
        ("{% if x is string %}s{% elif x is mapping %}m{% else %}o{% endif %}", "o"),
        ("a\n  {% if true %}\nb\n  {% endif %}\nc\n", "a\nb\nc"),
        ("{{- ' a ' -}}  b", " a b"),
        ("{% for r in tree recursive %}{{ r.n }}{{ loop(r.c) if r.c }}{% endfor %}", "12"),
    ],
)
def test_ordinary_templates_render_as_jinja_does(source: str, text: str) -> None:
    assert rendered(source, tree=[{"n": 1, "c": [{"n": 2, "c": []}]}]) == text
