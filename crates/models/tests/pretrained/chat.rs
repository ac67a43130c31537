//! Chat templates: as published ones use them, and hostile ones.

use std::time::Instant;

use regard_models::pretrained::{ChatTemplate, Message};
use serde_json::{Value, json};

use crate::common::Files;

fn messages() -> Vec<Message> {
    vec![
        Message::new("system", "Be brief."),
        Message::new("user", "  Hi \"you\" <é> "),
        Message::new("assistant", "Hello."),
    ]
}

fn render(template: &str) -> Result<String, String> {
    let tokens = [("bos_token", "<s>"), ("eos_token", "</s>")];
    let tokens = tokens.map(|(name, token)| (name.to_owned(), token.to_owned()));
    let template =
        ChatTemplate::new("t.jinja", template, tokens).map_err(|error| error.to_string())?;
    template
        .render(&messages(), true)
        .map_err(|error| error.to_string())
}

#[test]
fn templates_of_published_kinds_are_rendered() {
    let chatml = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}\
        {% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
    assert_eq!(
        render(chatml).unwrap(),
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n  Hi \"you\" <é> <|im_end|>\n\
         <|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>assistant\n"
    );
    // Blocks take their line's end with them; a system message goes into the first turn; methods are Python's.
    let inst = "{{ bos_token }}\n{%- if messages[0]['role'] == 'system' %}\n    {%- set system = messages[0]['content'].strip() + '\\n' %}\n    \
        {%- set loop_messages = messages[1:] %}\n{% endif %}\n\
        {% for message in loop_messages %}\n    {% if message.role == 'user' and loop.first %}\n[INST] {{ system ~ message.content.strip() }} [/INST]\n    \
        {% elif message.role == 'assistant' %}\n {{ message.content | trim }}{{ eos_token }}\n    {% endif %}\n{% endfor %}";
    assert_eq!(
        render(inst).unwrap(),
        "<s>[INST] Be brief.\nHi \"you\" <é> [/INST]\n Hello.</s>\n"
    );
    // `namespace`, slices backwards, `startswith`, `split`, tests, defaults, marks around an answer.
    let qwen = "{%- set ns = namespace(last=-1) %}{%- for message in messages[::-1] %}{%- if message.role == 'user' and ns.last < 0 \
        and message.content is string and not message.content.startswith('<tool') %}{%- set ns.last = loop.index0 %}{%- endif %}\
        {%- endfor %}{{ ns.last }} {{ tools is none or tools is not defined }} {{ 'a</think>b'.split('</think>')[-1].lstrip('\\n') }} \
        {{ enable_thinking | default('no') }}{%- generation -%} x {%- endgeneration -%} y";
    assert_eq!(render(qwen).unwrap(), "1 True b noxy");
}

/// Templates of the constructs that published ones have, by transformers' own Jinja (`../golden/tokenizers_golden.py`).
#[test]
fn templates_give_what_transformers_gives() {
    let golden = include_bytes!("../golden/chat_templates.json");
    let golden: Value = serde_json::from_slice(golden).unwrap();
    let messages: Vec<Message> = serde_json::from_value(golden["messages"].clone()).unwrap();
    for case in golden["templates"].as_array().unwrap() {
        let text = case[0].as_str().unwrap();
        let template = ChatTemplate::new("t.jinja", text, []).unwrap();
        let found = template.render(&messages, true).ok();
        assert_eq!(found.as_deref(), case[1].as_str(), "{text}");
    }
}

#[test]
fn json_is_pythons() {
    for (expression, expected) in [
        (
            "messages[1] | tojson",
            r#"{"role": "user", "content": "  Hi \"you\" <é> "}"#,
        ),
        (
            "[1, 2.5, true, none, 'a\\n'] | tojson",
            r#"[1, 2.5, true, null, "a\n"]"#,
        ),
        (
            "{'a': {}, 'b': []} | tojson(indent=2)",
            "{\n  \"a\": {},\n  \"b\": []\n}",
        ),
        (
            "{'a': [1, {'b': 2}]} | tojson(indent=1)",
            "{\n \"a\": [\n  1,\n  {\n   \"b\": 2\n  }\n ]\n}",
        ),
        (
            "[1, {'a': 2}] | tojson(separators=[',', ':'])",
            r#"[1,{"a":2}]"#,
        ),
        ("'</s>' | tojson(ensure_ascii=false)", r#""</s>""#),
    ] {
        assert_eq!(
            render(&format!("{{{{ {expression} }}}}")).unwrap(),
            expected,
            "{expression}"
        );
    }
    assert!(
        render("{{ 1 | tojson(wide=2) }}")
            .unwrap_err()
            .contains("wide")
    );
}

#[test]
fn the_date_is_that_of_today() {
    let year: u32 = render("{{ strftime_now('%Y') }}").unwrap().parse().unwrap();
    assert!(year >= 2025);
    assert_eq!(render("{{ strftime_now('%d %b %Y') }}").unwrap().len(), 11);
}

#[test]
fn what_a_template_says_about_a_conversation_is_the_error() {
    let template = "{% for message in messages %}\n{% if message.role == 'system' %}\n\
        {{ raise_exception('System role not supported') }}\n{% endif %}{% endfor %}";
    assert_eq!(
        render(template).unwrap_err(),
        "t.jinja: the chat template fails in line 3: System role not supported"
    );
    let found = render("{{ messages[0].content.frobnicate() }}").unwrap_err();
    assert!(
        found.starts_with("t.jinja: the chat template fails in line 1: "),
        "{found}"
    );
}

#[test]
fn broken_templates_are_named_by_line() {
    for template in [
        "a\n{% for x in %}",
        "a\n{% if x %}",
        "a\n{{ 'x",
        "a\n{% frobnicate %}",
        "a\n{{ 1 +* 2 }}",
    ] {
        let found = render(template).unwrap_err();
        assert!(
            found.starts_with("t.jinja: the chat template cannot be read in line "),
            "{found}"
        );
    }
    let nested = format!("{{{{ {}1{} }}}}", "(".repeat(100_000), ")".repeat(100_000));
    assert!(render(&nested).is_err());
    assert!(render(&"{% if true %}".repeat(20_000)).is_err());
}

#[test]
fn a_deep_template_is_read_and_a_large_one_refused() {
    // Each of these is read by recursion, a level deeper with every repetition.
    for (first, part, last) in [
        ("{{ ", "-", "1 }}"),
        ("{{ ", "not ", "1 }}"),
        ("{{ 1", "+1", " }}"),
        ("{{ 1", "**1", " }}"),
        ("{{ 1", "~1", " }}"),
        ("{{ 1", "|e", " }}"),
        ("{{ bos_token", ".x", " }}"),
        ("{% if 0 %}", "{% elif 0 %}", "{% endif %}"),
    ] {
        let count = (60_000 / part.len()).min(10_000);
        // It is written or refused, but does not end the process.
        let _ = render(&format!("{first}{}{last}", part.repeat(count)));
    }
    let found = render(&" ".repeat(1 << 17)).unwrap_err();
    assert_eq!(
        found,
        "t.jinja: the chat template has 131072 bytes; expected at most 65536"
    );
}

#[test]
fn a_template_that_does_not_end_is_stopped() {
    let deep = |what: &str| {
        format!(
            "{{% set ns = namespace(x=[]) %}}{{% for i in range(50000) %}}{{% set ns.x = [ns.x] %}}{{% endfor %}}{what}"
        )
    };
    for template in [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
        "{% for i in range(10**9) %}x{% endfor %}",
        "{% for i in range(1000) %}{{ 'x' * 99999999 }}{% endfor %}",
        "{{ 'x' * 10**18 }}",
        "{% include 'chat_template' %}",
        "{% extends 'chat_template' %}",
        &deep("{{ ns.x | tojson }}"),
    ] {
        let begun = Instant::now();
        let found = render(template).unwrap_err();
        assert!(found.contains("the chat template"), "{found}");
        assert!(begun.elapsed().as_secs() < 60, "{template}");
    }
    assert!(
        render("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}")
            .unwrap_err()
            .contains("does not end")
    );
    // Lists inside lists are dropped without harm, and shown.
    assert_eq!(render(&deep("")), Ok(String::new()));
    assert!(render(&deep("{{ ns.x }}")).is_ok_and(|text| text.len() > 100_000));
}

#[test]
fn a_template_is_found_where_models_have_it() {
    let files = Files::new();
    let open = || ChatTemplate::open(files.path());
    let rendered = || open().unwrap().render(&messages(), false).unwrap();
    let message = || open().unwrap_err().to_string();
    assert!(
        message().contains("was not trained on conversations"),
        "{}",
        message()
    );
    let first = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}";
    files.json(
        "tokenizer_config.json",
        &json!({"chat_template": first, "bos_token": {"content": "<s>"}}),
    );
    assert_eq!(rendered(), "<s>Be brief.");
    files.json("special_tokens_map.json", &json!({"eos_token": "</s>"}));
    assert_eq!(rendered(), "<s>Be brief.</s>");
    let named = |name: &str| json!({"chat_template": [{"name": "tool_use", "template": "x"}, {"name": name, "template": "y"}]});
    files.json("tokenizer_config.json", &named("default"));
    assert_eq!(rendered(), "y");
    files.json("tokenizer_config.json", &named("rag"));
    assert!(
        message().contains("found tool_use, rag; expected one named default"),
        "{}",
        message()
    );
    files.json("tokenizer_config.json", &json!({"chat_template": [1, 2]}));
    assert!(
        message().contains("found no template with a name; expected one named default"),
        "{}",
        message()
    );
    files.write("chat_template.jinja", "z{{ add_generation_prompt }}");
    assert_eq!(rendered(), "zFalse");
    files.write("chat_template.jinja", b"\xff");
    assert!(message().contains("no UTF-8 at byte 0"), "{}", message());
}
