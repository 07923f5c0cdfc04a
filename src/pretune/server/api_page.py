"""Page at `/docs`: every path of the API with its fields, an example for curl, and a form, from the OpenAPI schema."""

import json
import shlex
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from pretune.server.json_schema import Schema, describe, get_body_schema, list_options

CAPABILITIES = {"/v1/completions": "complete", "/v1/embeddings": "embed", "/heads": "attention"}
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
