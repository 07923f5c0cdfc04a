"""Chat templates in the manner of released models, one for each way they differ, and messages for them."""

from pretune.text.chat import DEFAULT_TEMPLATE, Message

TEMPLATES = {
    "default": DEFAULT_TEMPLATE,
    # a system message if there is none; a function of the date
    "chatml": """\
{% for message in messages %}
{% if loop.first and messages[0]['role'] != 'system' %}
{{ '<|im_start|>system\\nYou answer on ' + strftime_now('%Y') + '.<|im_end|>\\n' }}
{% endif %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{% endif %}
""",
    # headers, stripped contents, a start token, `set` and slices
    "headers": """\
{{- bos_token }}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
{{- '<|start_header|>system<|end_header|>\\n\\nCutting Knowledge Date: ' ~ ['December', 2023] | join(' ') ~ '\\n' }}
{{- system + '<|eot|>' }}
{%- for message in messages %}
    {{- '<|start_header|>' + message['role'] + '<|end_header|>\\n\\n' + message['content'] | trim + '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header|>assistant<|end_header|>\\n\\n' }}{%- endif %}
""",
    # no system role, another name of the answers, roles that alternate, a tag around answers
    "turns": """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}
{%- if message['role'] == 'assistant' %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}
{{- '<start_of_turn>' + role + '\\n' }}
{%- if role == 'model' %}{% generation %}{{ message['content'] | trim + '<end_of_turn>\\n' }}{% endgeneration %}
{%- else %}{{ message['content'] | trim + '<end_of_turn>\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}
""",
    # the system message in the last user turn, so that earlier text changes; no generation prompt; a namespace
    "instructions": """\
{{ bos_token }}
{%- set ns = namespace(last=-1, system='') %}
{%- for message in messages %}
{%- if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}
{%- if message.role == 'system' %}{% set ns.system = message.content ~ '\\n\\n' %}{% endif %}
{%- endfor %}
{%- for message in messages if message.role != 'system' %}
{%- if message.role == 'user' %}
{{- '[INST] ' ~ (ns.system if messages[ns.last] == message else '') ~ message.content ~ '[/INST]' }}
{%- elif message.role == 'assistant' %}{{ ' ' + message.content + eos_token }}
{%- else %}{{ raise_exception('Only user and assistant roles are supported, got ' ~ message | tojson) }}{% endif %}
{%- endfor %}
""",
    # thoughts of earlier answers are dropped, and the last answer has an empty one
    "thoughts": """\
{%- macro open(role) %}{{ '<|im_start|>' ~ role ~ '\\n' }}{% endmacro %}
{%- set ns = namespace(last=0) %}
{%- for message in messages[::-1] %}
    {%- if message.role == 'user' and not ns.last %}{% set ns.last = messages | length - loop.index0 - 1 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content, thought = message.content, '' %}
    {%- if message.role == 'assistant' and '</think>' in content %}
        {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- open(message.role) }}
    {%- if message.role == 'assistant' and loop.index0 > ns.last %}
        {{- '<think>\\n' ~ thought.strip('\\n') ~ '\\n</think>\\n\\n' }}
    {%- endif %}
    {{- content ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ open('assistant') }}{% endif %}
""",
}
"""By what is particular to each."""
SPECIAL_TOKENS = (
    "<|im_start|>",
    "<|im_end|>",
    "<|eot|>",
    "<|start_header|>",
    "<|end_header|>",
    "<end_of_turn>",
    "[INST]",
)


def chat(*contents: str, system: str = "") -> list[Message]:
    """Messages of a user and an assistant in turn."""
    first: list[Message] = [{"role": "system", "content": system}] if system else []
    roles = ("user", "assistant")
    return [*first, *({"role": roles[i % 2], "content": content} for i, content in enumerate(contents))]
