use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::environment::{Bounds, Compiled};
use super::*;
use crate::input::test_models::Folder;

#[derive(Deserialize)]
struct Table {
    values: Map<String, Value>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    /// A file of `tests/data/templates`; else `template` is the source.
    file: Option<String>,
    #[serde(default)]
    template: String,
    messages: Vec<Value>,
    options: Option<Map<String, Value>>,
    expected: Option<String>,
    error: Option<Value>,
}

fn token_names() -> Vec<(&'static str, String)> {
    vec![("bos_token", "<s>".to_owned()), ("eos_token", "</s>".to_owned())]
}

fn render(source: &str, chat: &ChatPrompt) -> Result<String, InputError> {
    let template = ChatTemplate::new(source, &token_names()).map_err(InputError::Template)?;
    template.render(chat, &token_names())
}

fn chat(messages: Value) -> ChatPrompt {
    ChatPrompt { messages: serde_json::from_value(messages).unwrap(), ..ChatPrompt::default() }
}

fn user(content: &str) -> ChatPrompt {
    chat(json!([{"role": "user", "content": content}]))
}

fn prompt(case: &Case, values: &Map<String, Value>) -> ChatPrompt {
    let mut options = case.options.clone().unwrap_or_else(|| values.clone());
    let flag = |value: Option<Value>| value == Some(Value::Bool(true));
    ChatPrompt {
        messages: case.messages.clone(),
        tools: options.remove("tools").map(|tools| serde_json::from_value(tools).unwrap()),
        add_generation_prompt: flag(options.remove("add_generation_prompt")),
        continue_final_message: flag(options.remove("continue_final_message")),
        add_special_tokens: false,
        template_kwargs: options,
    }
}

#[test]
fn a_request_sets_only_variables_that_the_template_names() {
    let source = "{% set mood = mood | default('calm') %}{{ raise_exception is defined }}{{ range(2) | list | length }} {{ mood }} \
                  {%- for message in messages %}{{ message.content }}{% endfor %}";
    let kwargs = json!({"mood": "glad", "range": 3, "raise_exception": null, "unknown": "x", "content": "y"});
    let told = |kwargs: Value| {
        let template_kwargs = serde_json::from_value(kwargs).unwrap();
        render(source, &ChatPrompt { template_kwargs, ..user("hi") }).unwrap()
    };
    assert_eq!(told(json!({})), "True2 calmhi");
    assert_eq!(told(kwargs), "True2 gladhi");
}

#[test]
fn developers_speak_as_the_system_where_a_template_does_not_know_them() {
    let spoken = chat(json!([{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "hi"}]));
    let rest = "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}";
    assert_eq!(render(rest, &spoken).unwrap(), "[system]Be brief.[user]hi");
    let known = format!("{{% if messages[0].role == 'developer' %}}!{{% endif %}}{rest}");
    assert_eq!(render(&known, &spoken).unwrap(), "![developer]Be brief.[user]hi");
}

fn template_file(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/templates").join(name);
    std::fs::read_to_string(path).unwrap()
}

/// Every case of `chat_cases.json` renders to what Transformers renders, or fails where it fails.
#[test]
fn renders_what_transformers_renders() {
    let table: Table = serde_json::from_str(include_str!("../../../tests/data/chat_cases.json")).unwrap();
    assert!(table.cases.len() > 100);
    let mut wrong = Vec::new();
    for case in &table.cases {
        let source = case.file.as_ref().map_or_else(|| case.template.clone(), |file| template_file(file));
        let rendered = render(&source, &prompt(case, &table.values));
        let right = match (&rendered, &case.expected, &case.error) {
            (Ok(text), Some(expected), _) => text == expected,
            (Err(error), None, Some(Value::String(message))) => error == &InputError::Template(message.clone()),
            (Err(_), None, Some(_)) => true,
            _ => false,
        };
        if !right {
            let expected = case.expected.as_ref().map_or_else(|| json!(case.error), |text| json!(text));
            wrong.push(format!("{}\n  wanted {expected}\n  got    {}", case.name, json!(format!("{rendered:?}"))));
        }
    }
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), table.cases.len(), wrong.join("\n"));
}

#[test]
fn the_clients_variables_never_replace_ours() {
    let mut chat = user("real");
    for name in ["messages", "tools", "add_generation_prompt", "bos_token"] {
        chat.template_kwargs.insert(name.to_owned(), json!("fake"));
    }
    chat.template_kwargs.insert("mood".to_owned(), json!("good"));
    let source =
        "{{ messages[0].content }} {{ tools }} {{ documents }} {{ add_generation_prompt }} {{ bos_token }} {{ mood }}";
    assert_eq!(render(source, &chat).unwrap(), "real None None False <s> good");
    chat.template_kwargs.insert("documents".to_owned(), json!(["d"]));
    assert_eq!(render("{{ documents[0] }}", &chat).unwrap(), "d");
}

#[test]
fn runaway_templates_end() {
    let loops = "{% for a in range(9000) %}{% for b in range(9000) %}{{ '' }}{% endfor %}{% endfor %}";
    let bounds = Bounds { fuel: 100_000, ..Bounds::default() };
    let error = Compiled::new(loops, bounds).unwrap().render(minijinja::Value::UNDEFINED).unwrap_err();
    assert!(error.contains("too long"), "{error}");

    let writes = "{% for a in range(1000) %}{{ 'x' * 1000 }}{% endfor %}";
    let bounds = Bounds { output: 10_000, ..Bounds::default() };
    let error = Compiled::new(writes, bounds).unwrap().render(minijinja::Value::UNDEFINED).unwrap_err();
    assert!(error.contains("wrote more than 10000 bytes"), "{error}");

    let recursion = "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}";
    assert!(render(recursion, &user("Hi")).is_err());
    let nesting = "{% set ns = namespace(x=[]) %}{% for i in range(5000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x | tojson }}";
    assert!(render(nesting, &user("Hi")).is_err());
}

#[test]
fn times_with_a_wrong_format_are_errors() {
    for format in ["%Q", "%", "%-", "%:", "%#z"] {
        let source = format!("{{{{ strftime_now('{format}') }}}}");
        let error = render(&source, &user("Hi")).unwrap_err();
        assert!(matches!(error, InputError::Template(_)), "{format}: {error}");
    }
}

#[test]
fn messages_that_are_none_are_refused() {
    let source = "{% for m in messages %}{{ m.content }}{% endfor %}";
    let wrong = [
        json!([]),
        json!(["text"]),
        json!([{"content": "no role"}]),
        json!([{"role": 1, "content": ""}]),
        json!([{"role": "user", "content": 1}]),
        json!([{"role": "user", "content": {"type": "text", "text": "a"}}]),
        json!([{"role": "user", "content": ["a"]}]),
        json!([{"role": "user", "content": [{"type": "text"}]}]),
    ];
    for messages in wrong {
        let error = render(source, &chat(messages.clone())).unwrap_err();
        assert!(matches!(error, InputError::Validation(_)), "{messages}: {error}");
    }
    let picture = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://a"}}]}]);
    let error = render(source, &chat(picture)).unwrap_err().to_string();
    assert!(error.contains("`image_url`"), "{error}");
}

#[test]
fn continuing_needs_text_and_no_prompt() {
    let source = "{% for m in messages %}{{ m.content }}{% endfor %}";
    let mut chat = chat(json!([{"role": "assistant", "content": null}]));
    chat.continue_final_message = true;
    assert!(matches!(render(source, &chat), Err(InputError::Validation(_))));
    chat.messages = vec![json!({"role": "assistant", "content": "Yes"})];
    assert_eq!(render(source, &chat).unwrap(), "Yes");
    chat.add_generation_prompt = true;
    assert!(matches!(render(source, &chat), Err(InputError::Validation(_))));
}

#[test]
fn finds_out_how_a_template_takes_content() {
    let form = |name: &str| ChatTemplate::new(&template_file(name), &token_names()).unwrap().style.content;
    assert_eq!(form("chatml.jinja"), ContentForm::Text);
    assert_eq!(form("parts_only.jinja"), ContentForm::Parts);
    assert_eq!(form("turns.jinja"), ContentForm::Either);
    assert_eq!(form("text_or_parts.jinja"), ContentForm::Either);
    let only_users = "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% elif m.content is string %}\
                      {{ m.content }}{% else %}{{ m.content[0].text }}{% endif %}{% endfor %}";
    let form = ChatTemplate::new(only_users, &token_names()).unwrap().style.content;
    assert_eq!(form, ContentForm::Text, "parts would be printed for a system message");
}

#[test]
fn finds_tests_for_none() {
    for source in ["message['content'] is none", "m.content is not none", "content == None", "(m[\"content\"]) != none"]
    {
        assert!(tests_for_none(source), "{source}");
    }
    for source in
        ["m.content is string", "m.content", "content", "tool_calls is none", "content is not", "content is é"]
    {
        assert!(!tests_for_none(source), "{source}");
    }
}

fn templates(folder: &Folder, config: &Value) -> ChatTemplates {
    let special = SpecialTokens { names: token_names(), eos_ids: [].into(), vocab_size: None, decoder_start: None };
    ChatTemplates::load(folder.path(), config, &special).unwrap()
}

#[test]
fn files_are_looked_for_in_order() {
    let config = json!({"chat_template": "from the configuration"});
    let folder = Folder::new();
    let rendered = |folder: &Folder| templates(folder, &config).render(&user("Hi")).unwrap();
    assert_eq!(rendered(&folder), "from the configuration");
    let folder = folder.with("chat_template.json", &json!({"chat_template": "from JSON"}));
    assert_eq!(rendered(&folder), "from JSON");
    let folder = folder.with_text("chat_template.jinja", "from Jinja");
    assert_eq!(rendered(&folder), "from Jinja");
}

#[test]
fn tools_choose_their_template() {
    let config = json!({"chat_template": [
        {"name": "default", "template": "plain"}, {"name": "tool_use", "template": "{{ tools | length }} tools"}
    ]});
    let templates = templates(&Folder::new(), &config);
    let mut chat = user("Hi");
    assert_eq!(templates.render(&chat).unwrap(), "plain");
    chat.tools = Some(Vec::new());
    assert_eq!(templates.render(&chat).unwrap(), "plain");
    chat.tools = Some(vec![json!({}), json!({})]);
    assert_eq!(templates.render(&chat).unwrap(), "2 tools");
}

#[test]
fn missing_and_damaged_templates_say_so() {
    let none = templates(&Folder::new(), &Value::Null);
    assert!(!none.usable());
    let error = none.render(&user("Hi")).unwrap_err().to_string();
    assert!(error.contains("no chat template"), "{error}");

    let damaged = templates(&Folder::new(), &json!({"chat_template": "line\n{% for %}"}));
    assert!(!damaged.usable());
    let error = damaged.render(&user("Hi")).unwrap_err().to_string();
    assert!(error.contains("damaged") && error.contains("line 2"), "{error}");
}
