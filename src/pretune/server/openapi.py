"""The OpenAPI schema in words: allowed values of fields, faults of a body, and the page at `/docs`.

The page has every path of the API with its fields, an example for curl, and a form.
"""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from pretune.core.errors import suggest

Schema = Mapping[str, Any]
Path = tuple[str | int, ...]
MAX_VALUE = 60
"""Maximum characters of a value in a message."""
MAX_FAULTS = 5
"""Maximum number of faults in a message."""
BODY = "the body must be a JSON object (Content-Type: application/json)"


def get_body_schema(openapi: Schema, path: str, method: str = "post") -> Schema | None:
    """Return the schema of the body of a request, if it has one."""
    body = openapi["paths"].get(path, {}).get(method, {}).get("requestBody")
    return None if body is None else _resolve(body["content"]["application/json"]["schema"], openapi)


def describe(schema: Schema, openapi: Schema) -> str:
    """Return the allowed values of a schema in words.

    >>> describe({"anyOf": [{"type": "integer", "minimum": 1.0}, {"type": "null"}]}, {})
    'integer >= 1 or null'
    >>> describe({"type": "array", "items": {"type": "string"}, "maxItems": 16}, {})
    'list of at most 16 texts'
    >>> describe({"type": "string", "enum": ["a", "b"]}, {})
    '"a" or "b"'
    """
    names = dict.fromkeys(_describe_one(option, openapi) for option in list_options(schema, openapi))
    *first, last = names or ["anything"]
    return f"{', '.join(first)} or {last}" if first else last


def _describe_one(schema: Schema, openapi: Schema) -> str:
    """Return the allowed values of a schema without alternatives."""
    if "enum" in schema or "const" in schema:
        *first, last = [json.dumps(value, allow_nan=False) for value in schema.get("enum", [schema.get("const")])]
        return f"{', '.join(first)} or {last}" if first else last
    kind = schema.get("type", "anything")
    if kind in ("integer", "number"):
        return f"{kind}{_describe_range(schema)}"
    if kind == "string":
        size = _describe_size(schema, "Length")
        return f"text of {size}characters" if size else "text"
    if kind == "array":
        item = describe(schema.get("items", {}), openapi)
        noun, space, rest = item.partition(" ")
        is_single = len([*list_options(schema.get("items", {}), openapi)]) == 1
        return f"list of {_describe_size(schema, 'Items')}{f'{noun}s{space}{rest}' if is_single else f'({item})'}"
    if kind == "object":
        values = schema.get("additionalProperties")
        if schema.get("properties"):
            return f"object with {', '.join(schema['properties'])}"
        return f"object of ({describe(values, openapi)})" if isinstance(values, Mapping) else "object"
    return {"boolean": "true or false"}.get(kind, str(kind))


def _describe_range(schema: Schema) -> str:
    """Return the range of a number."""
    if "minimum" in schema and "maximum" in schema:
        return f" from {_format(schema['minimum'])} to {_format(schema['maximum'])}"
    signs = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    texts = [f"{sign} {_format(schema[name])}" for name, sign in signs.items() if name in schema]
    return f" {' and '.join(texts)}" if texts else ""


def _format(limit: float) -> str:
    """Return a limit, which a schema has as a float."""
    return str(int(limit)) if limit == int(limit) else str(limit)


def _describe_size(schema: Schema, noun: str) -> str:
    """Return the limits of the size of a text or list, with a space at the end."""
    low, high = schema.get(f"min{noun}", 0), schema.get(f"max{noun}")
    if low == high:
        return f"{low} "
    if high is None:
        return f"at least {low} " if low else ""
    return f"{low} to {high} " if low else f"at most {high} "


def _resolve(schema: Schema, openapi: Schema) -> Schema:
    """Return the schema that a reference names."""
    reference = schema.get("$ref")
    return schema if reference is None else openapi["components"]["schemas"][reference.rpartition("/")[2]]


def list_options(schema: Schema, openapi: Schema) -> Iterator[Schema]:
    """Yield the alternatives of a schema."""
    schema = _resolve(schema, openapi)
    for option in schema.get("anyOf", ()):
        yield from list_options(option, openapi)
    if "anyOf" not in schema:
        yield schema


def _select(schema: Schema, path: Path, openapi: Schema) -> Schema:
    """Return the schema of a part of a body."""
    options: list[Schema] = [schema]
    for part in path:
        parts = [option for choice in options for option in list_options(choice, openapi)]
        if isinstance(part, int):
            options = [option["items"] for option in parts if "items" in option]
        else:
            values = [option.get("properties", {}).get(part, option.get("additionalProperties")) for option in parts]
            options = [value for value in values if isinstance(value, Mapping)]
    return {"anyOf": options}


def describe_faults(
    faults: Sequence[Mapping[str, Any]], body: object, schema: Schema, openapi: Schema
) -> tuple[str, str | None]:
    """Return the message for the faults that pydantic found in a body, and the first field that has one.

    Pydantic reports every alternative of a field, by the names of its validators. Here the field is named once, with
    the values that it may have.
    """
    if not isinstance(body, dict):
        return BODY, None
    by_path: dict[Path, Mapping[str, Any]] = {}
    for fault in faults:
        path = _find_path(fault, body)
        if path not in by_path or fault["type"] == "value_error":
            by_path[path] = fault
    messages = [path for path, fault in by_path.items() if fault["type"] == "value_error"]  # our own
    paths = [path for path in by_path if path in messages or not any(_is_prefix(path, other) for other in messages)]
    paths = [path for path in paths if not any(_is_prefix(other, path) for other in paths if other != path)]
    texts = [_describe_fault(path, by_path[path], body, schema, openapi) for path in paths[:MAX_FAULTS]]
    return "; ".join(texts), ".".join(map(str, paths[0])) or None


def _is_prefix(path: Path, other: Path) -> bool:
    return other[: len(path)] == path


def _find_path(fault: Mapping[str, Any], body: Any) -> Path:
    """Return the place of a fault in the body; pydantic's also names alternatives and keys."""
    place, path = fault["loc"][1:], list[str | int]()
    for part in place:
        if (isinstance(body, dict) and part in body) or (isinstance(body, list) and isinstance(part, int)):
            body = body[part]
            path.append(part)
    if fault["type"] == "missing":
        path.append(place[-1])
    return tuple(path[:-1] if place[-1:] == ("[key]",) else path)


def _describe_fault(path: Path, fault: Mapping[str, Any], body: Any, schema: Schema, openapi: Schema) -> str:
    """Return the field, its value, and the allowed values."""
    field = ".".join(str(part)[:MAX_VALUE] for part in path)
    if not path:
        return "the names of fields must be valid Unicode"
    if fault["type"] == "value_error":
        return f"{field}: {fault['ctx']['error']}"
    if fault["type"] == "extra_forbidden":
        options = list_options(_select(schema, path[:-1], openapi), openapi)
        names = [name for option in options for name in option.get("properties", ())]
        return f"{field}: unknown field{suggest(str(path[-1]), names)} (fields: {', '.join(names)})"
    values = describe(_select(schema, path, openapi), openapi)
    if fault["type"] == "missing":
        return f"{field}: missing; must be {values}"
    for part in path:
        body = body[part]
    try:
        value = json.dumps(body, ensure_ascii=False, allow_nan=False)
    except ValueError:
        value = "NaN or infinity"
    return f"{field}: must be {values}, got {value if len(value) <= MAX_VALUE else f'{value[:MAX_VALUE]}…'}"


CAPABILITIES = {
    "/v1/completions": "complete",
    "/v1/chat/completions": "chat",
    "/v1/embeddings": "embed",
    "/heads": "attention",
}
"""Capability that a path needs, if it is not its name."""
HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>pretune: API</title>
<link rel="icon" href="/page/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/page/style.css">
<script type="module" src="/page/docs.js"></script>
</head>
<body class="api">
<header><h1>pretune: API</h1></header>
<main>
<p>Bodies and answers are JSON. A server of several models needs a <code>model</code> in every request; one with a token
needs the header <code>Authorization: Bearer TOKEN</code>. The paths below <code>/v1</code> have the shape of OpenAI's
API. The schema is at <a href="/openapi.json">/openapi.json</a>, the page to try the models at <a href="/">/</a>.</p>
<p id="status" class="message" role="status" hidden></p>
"""
TAIL = "</main>\n</body>\n</html>\n"
TABLE_HEAD = "<thead><tr><th>field</th><th>values</th><th>default</th><th>meaning</th></tr></thead>"


def build_api_page(openapi: Schema, address: str) -> str:
    """Return the page; `address` is that of the server, for the examples."""
    operations = [(path, method, facts) for path, item in openapi["paths"].items() for method, facts in item.items()]
    links = [f'<li><a href="#{_get_id(path, method)}">{escape(path)}</a></li>' for path, method, _ in operations]
    sections = [_format_operation(path, method, facts, openapi, address) for path, method, facts in operations]
    return "".join([HEAD, f'<nav><ul class="chips">{"".join(links)}</ul></nav>\n', *sections, TAIL])


def _escape(text: str) -> str:
    """Return text as HTML; parts between backticks are code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts))


def _get_id(path: str, method: str) -> str:
    return f"{method}{''.join(mark if mark.isalnum() else '-' for mark in path)}".strip("-")


def _format_operation(path: str, method: str, facts: Schema, openapi: Schema, address: str) -> str:
    """Return the section of a path: meaning, fields, example, form."""
    schema, fields = get_body_schema(openapi, path, method), list[tuple[str, Schema, bool]]()
    for item in facts.get("parameters", ()):
        fields.append((item["name"], item["schema"] | {"description": item.get("description", "")}, item["required"]))
    parts = [
        f"<h3><code>{method.upper()} {escape(path)}</code></h3>",
        f"<p>{_escape(facts.get('description', ''))}</p>",
    ]
    command = f"curl {shlex.quote(address + path)}"
    if schema is not None:
        fields += _list_fields(schema, openapi)
        body = json.dumps(schema.get("example", {}), ensure_ascii=False, allow_nan=False)
        command += f" -H 'Content-Type: application/json' -d {shlex.quote(body)}"
    if fields:
        rows = "".join(_format_field(name, field, is_required, openapi) for name, field, is_required in fields)
        parts.append(f'<div class="wide" tabindex="0"><table>{TABLE_HEAD}<tbody>{rows}</tbody></table></div>')
    parts.append(f"<pre>{escape(command)}</pre>")
    if "{" not in path:
        parts.append(_format_form(path, schema))
    return f'<section class="card" id="{_get_id(path, method)}">{"".join(parts)}</section>\n'


def _list_fields(schema: Schema, openapi: Schema, prefix: str = "") -> Iterator[tuple[str, Schema, bool]]:
    """Yield the fields of a body with their schemas, those of objects after them; true for required ones."""
    for name, field in schema.get("properties", {}).items():
        yield prefix + name, field, name in schema.get("required", ())
        for option in list_options(field, openapi):
            yield from _list_fields(option, openapi, f"{prefix}{name}.")


def _format_field(name: str, field: Mapping[str, Any], is_required: bool, openapi: Schema) -> str:
    default = "required" if is_required else json.dumps(field["default"], allow_nan=False) if "default" in field else ""
    cells = (escape(describe(field, openapi)), escape(default), _escape(field.get("description", "")))
    return f'<tr><th scope="row"><code>{escape(name)}</code></th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'


def _format_form(path: str, schema: Schema | None) -> str:
    """Return a form that sends the example, which can be changed."""
    text, capability = "", ""
    if schema is not None:
        example = escape(json.dumps(schema.get("example", {}), ensure_ascii=False, indent=2, allow_nan=False))
        text = f'<label class="field"><span class="caption">Body</span><textarea rows="6">{example}</textarea></label>'
        capability = f' data-capability="{escape(CAPABILITIES.get(path, path[1:]))}"'
    return (
        f'<details><summary>Try it</summary><form data-path="{escape(path)}"{capability}>{text}'
        '<button class="primary">Send</button><pre class="reply" aria-live="polite"></pre></form></details>'
    )
