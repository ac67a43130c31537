//! The template by which a model reads a conversation.

use std::{
    io::{self, Write},
    panic::resume_unwind,
    path::{Path, PathBuf},
    thread,
    time::{SystemTime, UNIX_EPOCH},
};

use minijinja::{
    Environment, Error, ErrorKind, State, Value,
    syntax::SyntaxConfig,
    value::{Kwargs, Serde, Tuple, ValueKind, from_args},
};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde::{Deserialize, Serialize};

use super::{
    error::PretrainedError,
    json::{LARGEST_SETTINGS, settings, text},
    tokenizer::{content, special_tokens},
};

/// Steps that a template may take. Those of published models take a few hundred for each message.
const FUEL: u64 = 500_000;
/// The longest conversation in bytes.
const LONGEST_OUTPUT: usize = 64 << 20;
/// The largest template in bytes; published ones are smaller. Where a template is read, a byte can take a level of recursion, and time can
/// grow with the square of the bytes.
const LARGEST: usize = 64 << 10;
/// Templates are read and dropped by recursion, up to a level for each byte, and so are lists inside lists written and dropped, of which a
/// template can make one with every few steps.
const STACK: usize = 512 << 20;
/// The deepest list inside lists that `tojson` writes.
const DEEPEST: usize = 100;

/// A message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who says it: `system`, `user` or `assistant`.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl Message {
    /// A message.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: content.into(),
        }
    }
}

/// A model's own template for conversations, in the language Jinja.
///
/// A template reaches nothing outside the conversation, and one that does not end is stopped.
///
/// ```
/// use regard_models::pretrained::{ChatTemplate, Message};
///
/// let text = "{% for message in messages %}<{{ message.role }}> {{ message.content | trim }}\n{% endfor %}\
///             {% if add_generation_prompt %}<assistant>{% endif %}";
/// let template = ChatTemplate::new("chat_template.jinja", text, [])?;
/// let prompt = template.render(&[Message::new("user", " Hello! ")], true)?;
/// assert_eq!(prompt, "<user> Hello!\n<assistant>");
/// # Ok::<(), regard_models::pretrained::PretrainedError>(())
/// ```
#[derive(Debug)]
pub struct ChatTemplate {
    path: PathBuf,
    environment: Environment<'static>,
    /// What the template knows beside the conversation: `bos_token` and so on.
    tokens: Vec<(String, String)>,
}

impl ChatTemplate {
    /// The template of a folder: `chat_template.jinja`, or the key `chat_template` of `tokenizer_config.json`, of several templates
    /// the one named `default`.
    ///
    /// # Errors
    /// [`PretrainedError::Malformed`] if there is none, or one that cannot be read.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self, PretrainedError> {
        let folder = folder.as_ref();
        let (file, config_file) = (
            folder.join("chat_template.jinja"),
            folder.join("tokenizer_config.json"),
        );
        let config = settings(&config_file)?;
        let tokens = special_tokens(folder, &config)?;
        let tokens = tokens.iter().filter_map(|(role, token)| {
            Some((format!("{role}_token"), content(token)?.to_owned()))
        });
        if file.exists() {
            return Self::new(&file, &text(&file, LARGEST_SETTINGS)?, tokens);
        }
        let problem = match config.get("chat_template") {
            Some(serde_json::Value::String(template)) => {
                return Self::new(&config_file, template, tokens);
            }
            Some(serde_json::Value::Array(named)) => {
                let default = named.iter().find(|template| template["name"] == "default");
                if let Some(template) = default.and_then(|named| named["template"].as_str()) {
                    return Self::new(&config_file, template, tokens);
                }
                let names = named
                    .iter()
                    .filter_map(|template| template["name"].as_str());
                let names: Vec<&str> = names.collect();
                let found = match names.is_empty() {
                    true => "no template with a name".to_owned(),
                    false => names.join(", "),
                };
                format!("chat_template: found {found}; expected one named default")
            }
            _ => "no chat_template: the model was not trained on conversations; give it plain text"
                .to_owned(),
        };
        Err(PretrainedError::malformed(&config_file, problem))
    }

    /// A template from its text. Errors name `path`; `tokens` are variables of the template, such as `bos_token`.
    ///
    /// # Errors
    /// [`PretrainedError::Malformed`] with the line of a mistake.
    pub fn new(
        path: impl Into<PathBuf>,
        template: &str,
        tokens: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, PretrainedError> {
        let path = path.into();
        if template.len() > LARGEST {
            let bytes = template.len();
            let problem =
                format!("the chat template has {bytes} bytes; expected at most {LARGEST}");
            return Err(PretrainedError::malformed(&path, problem));
        }
        // Jinja reads every end of a line as `\n`.
        let template = without_marks(&template.replace("\r\n", "\n").replace('\r', "\n"));
        let read = deep(&path, || environment(template))?;
        let environment = read.map_err(|error| refused(&path, "cannot be read", &error))?;
        Ok(Self {
            path,
            environment,
            tokens: tokens.into_iter().collect(),
        })
    }

    /// A conversation as the model reads it. `answer` says whether the text ends where an answer begins. It already has the model's
    /// special tokens: encode it without adding them again.
    ///
    /// # Errors
    /// [`PretrainedError::Malformed`] with what the template says about the conversation, or if it does not end.
    pub fn render(&self, messages: &[Message], answer: bool) -> Result<String, PretrainedError> {
        // The template's values are dropped on the thread, too.
        let render = || -> Result<Vec<u8>, Error> {
            let tokens = self.tokens.iter();
            let mut context: Vec<(&str, Value)> = tokens
                .map(|(name, token)| (name.as_str(), token.as_str().into()))
                .collect();
            context.extend([
                ("messages", Serde(messages).into()),
                ("add_generation_prompt", answer.into()),
                ("tools", ().into()),
                ("documents", ().into()),
            ]);
            let mut output = Limited(vec![]);
            let template = self.environment.get_template(NAME)?;
            template.render_captured_to(Value::from_pairs(context), &mut output)?;
            Ok(output.0)
        };
        let output = deep(&self.path, render)?;
        let output = output.map_err(|error| refused(&self.path, "fails", &error))?;
        String::from_utf8(output).map_err(|_| {
            PretrainedError::malformed(&self.path, "the chat template writes no UTF-8")
        })
    }
}

const NAME: &str = "chat_template";

/// Does `work` on a thread with room for recursion.
fn deep<T: Send>(path: &Path, work: impl FnOnce() -> T + Send) -> Result<T, PretrainedError> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(STACK);
        let thread = thread.spawn_scoped(scope, work);
        let thread = thread.map_err(PretrainedError::read(path))?;
        Ok(thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

/// What a template runs in.
fn environment(template: String) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()?;
    environment.set_syntax(syntax);
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(method);
    environment.add_filter("tojson", tojson);
    environment.add_test("sequence", is_sequence);
    environment.add_test("iterable", is_iterable);
    environment.add_function(
        "raise_exception",
        |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        },
    );
    environment.add_function("strftime_now", |format: &str| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        strftime(format, now.map_or(0, |since| since.as_secs()))
    });
    environment.add_template_owned(NAME, template)?;
    Ok(environment)
}

/// A template without the marks around what an assistant says, which matter in training alone. What is set between them ends there,
/// as in a block of `with`.
fn without_marks(template: &str) -> String {
    let mut changed = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(at) = rest.find("{%") {
        let (before, statement) = rest.split_at(at + 2);
        changed.push_str(before);
        rest = statement;
        let Some(end) = rest.find("%}") else { break };
        let name = rest[..end].trim_matches(['-', '+']).trim();
        let other = match name {
            "generation" => "with",
            "endgeneration" => "endwith",
            _ => continue,
        };
        changed.push_str(&rest[..end].replacen(name, other, 1));
        rest = &rest[end..];
    }
    changed.push_str(rest);
    changed
}

/// Python's methods of a text that pycompat lacks or has in another way; the others are pycompat's.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return unknown_method_callback(state, value, name, args);
    };
    Ok(match name {
        "title" => {
            let () = from_args(args)?;
            title(text).into()
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            text.strip_prefix(prefix).unwrap_or(text).into()
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            text.strip_suffix(suffix).unwrap_or(text).into()
        }
        "partition" => {
            let (mark,): (&str,) = from_args(args)?;
            let (before, mark, after) = match text.split_once(mark) {
                Some((before, after)) => (before, mark, after),
                None => (text, "", ""),
            };
            Tuple::from([before, mark, after].map(Value::from)).into()
        }
        "rpartition" => {
            let (mark,): (&str,) = from_args(args)?;
            let (before, mark, after) = match text.rsplit_once(mark) {
                Some((before, after)) => (before, mark, after),
                None => ("", "", text),
            };
            Tuple::from([before, mark, after].map(Value::from)).into()
        }
        "split" | "rsplit" => {
            let (mark, most, named): (Option<&str>, Option<i64>, Kwargs) = from_args(args)?;
            let mark = mark.or(named.get("sep")?);
            let most = most.or(named.get("maxsplit")?);
            named.assert_all_used()?;
            match (name, mark, most) {
                ("rsplit", Some(mark), Some(most @ 0..)) => {
                    let parts = text.rsplitn((most as usize).saturating_add(1), mark);
                    let mut parts: Vec<Value> = parts.map(Value::from).collect();
                    parts.reverse();
                    parts.into()
                }
                ("rsplit", None, Some(0..)) => {
                    let problem = "rsplit: a number of parts, but no text between them";
                    return Err(Error::new(ErrorKind::InvalidOperation, problem));
                }
                // Both sides give the same parts.
                _ => {
                    let args = [
                        mark.map_or(Value::from(()), Value::from),
                        most.unwrap_or(-1).into(),
                    ];
                    unknown_method_callback(state, value, "split", &args)?
                }
            }
        }
        _ => unknown_method_callback(state, value, name, args)?,
    })
}

/// A text whose letters are large where no letter stands before them, and small otherwise, as Python's `title` has it: also behind
/// an apostrophe.
fn title(text: &str) -> String {
    let mut titled = String::with_capacity(text.len());
    let mut inside = false;
    for letter in text.chars() {
        match inside {
            true => titled.extend(letter.to_lowercase()),
            false => titled.extend(letter.to_uppercase()),
        }
        inside = letter.is_lowercase() || letter.is_uppercase();
    }
    titled
}

/// Jinja's test: what has a length and items, as texts and objects have.
fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::String | ValueKind::Map)
        || minijinja::tests::is_sequence(value)
}

/// Jinja's test: `none`, over which minijinja's loops go, is not among what it holds for.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && minijinja::tests::is_iterable(value)
}

fn refused(path: &Path, what: &str, error: &Error) -> PretrainedError {
    let place = error
        .line()
        .map_or_else(String::new, |line| format!(" in line {line}"));
    let reason = match error.kind() {
        ErrorKind::OutOfFuel => format!("it does not end within {FUEL} steps"),
        _ => {
            let detail = error.detail().map(str::to_owned);
            detail.unwrap_or_else(|| error.kind().to_string())
        }
    };
    PretrainedError::malformed(path, format!("the chat template {what}{place}: {reason}"))
}

/// Refuses output beyond [`LONGEST_OUTPUT`].
struct Limited(Vec<u8>);

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > LONGEST_OUTPUT {
            let problem = format!("the conversation is longer than {LONGEST_OUTPUT} bytes");
            return Err(io::Error::other(problem));
        }
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Python's `json.dumps`, without escapes of other letters unless `ensure_ascii`, as templates expect it.
fn tojson(
    value: &Value,
    ensure_ascii: Option<Value>,
    indent: Option<usize>,
    options: Kwargs,
) -> Result<Value, Error> {
    let flag = |name| -> Result<bool, Error> {
        let value: Option<Value> = options.get(name)?;
        Ok(value.is_some_and(|value| value.is_true()))
    };
    let (ascii, sorted) = (flag("ensure_ascii")?, flag("sort_keys")?);
    let ascii = ensure_ascii.map_or(ascii, |value| value.is_true());
    let indent = indent.or(options.get("indent")?);
    let separators: Option<Vec<String>> = options.get("separators")?;
    options.assert_all_used()?;
    let (comma, colon) = match separators.as_deref() {
        Some([comma, colon]) => (comma.as_str(), colon.as_str()),
        _ => (if indent.is_some() { "," } else { ", " }, ": "),
    };
    let mut text = String::new();
    let style = Style {
        comma,
        colon,
        indent,
        ascii,
        sorted,
    };
    style.write(value, 0, &mut text)?;
    Ok(Value::from_safe_string(text))
}

struct Style<'a> {
    comma: &'a str,
    colon: &'a str,
    indent: Option<usize>,
    /// Whether other letters than those of ASCII are escaped.
    ascii: bool,
    /// Whether the keys of an object are in their order.
    sorted: bool,
}

impl Style<'_> {
    fn write(&self, value: &Value, depth: usize, text: &mut String) -> Result<(), Error> {
        if depth > DEEPEST || text.len() > LONGEST_OUTPUT {
            let problem = "tojson: the value is too deep or too long";
            return Err(Error::new(ErrorKind::InvalidOperation, problem));
        }
        match value.kind() {
            ValueKind::Undefined => {
                let problem = "tojson: the value is not defined";
                return Err(Error::new(ErrorKind::UndefinedError, problem));
            }
            ValueKind::None => text.push_str("null"),
            ValueKind::Bool => text.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => text.push_str(&value.to_string()),
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sorted {
                    keys.sort();
                }
                text.push('{');
                for (place, key) in keys.into_iter().enumerate() {
                    self.begin(place, depth + 1, text);
                    text.push_str(&self.quoted(&key));
                    text.push_str(self.colon);
                    self.write(&value.get_item(&key)?, depth + 1, text)?;
                }
                self.end(value, depth, text);
                text.push('}');
            }
            ValueKind::Seq | ValueKind::Iterable => {
                text.push('[');
                for (place, item) in value.try_iter()?.enumerate() {
                    self.begin(place, depth + 1, text);
                    self.write(&item, depth + 1, text)?;
                }
                self.end(value, depth, text);
                text.push(']');
            }
            _ => text.push_str(&self.quoted(value)),
        }
        Ok(())
    }

    fn begin(&self, place: usize, depth: usize, text: &mut String) {
        if place > 0 {
            text.push_str(self.comma);
        }
        self.line(depth, text);
    }

    fn end(&self, value: &Value, depth: usize, text: &mut String) {
        if value.len() != Some(0) {
            self.line(depth, text);
        }
    }

    fn line(&self, depth: usize, text: &mut String) {
        if let Some(indent) = self.indent {
            text.push('\n');
            text.extend(std::iter::repeat_n(' ', indent.min(DEEPEST) * depth));
        }
    }
    fn quoted(&self, value: &Value) -> String {
        let text = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned);
        let text = serde_json::Value::String(text).to_string();
        if !self.ascii {
            return text;
        }
        let mut escaped = String::with_capacity(text.len());
        for letter in text.chars() {
            match letter {
                ' '..='~' => escaped.push(letter),
                _ => {
                    let mut units = [0; 2];
                    let units = letter.encode_utf16(&mut units).iter();
                    escaped.extend(units.map(|unit| format!("\\u{unit:04x}")));
                }
            }
        }
        escaped
    }
}

/// The time `seconds` after 1970 in UTC by the format of C's `strftime`, with the fields that templates use.
fn strftime(format: &str, seconds: u64) -> String {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    const DAYS: [&str; 7] = [
        "Thursday",
        "Friday",
        "Saturday",
        "Sunday",
        "Monday",
        "Tuesday",
        "Wednesday",
    ];
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years of 400 begin in March, so that a leap day is the last of its year (Howard Hinnant's civil_from_days).
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = (month + 2) % 12;
    let year = year + era * 400 + u64::from(month < 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    let (month_name, day_name) = (MONTHS[month as usize], DAYS[(days % 7) as usize]);
    let mut text = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            text.push(character);
            continue;
        }
        let mut kind = characters.next();
        // Without zeros or spaces in front, as of C's library on Linux.
        let bare = kind == Some('-');
        if bare {
            kind = characters.next();
        }
        let field = match kind {
            Some('Y') => year.to_string(),
            Some('y') => format!("{:02}", year % 100),
            Some('m') => format!("{:02}", month + 1),
            Some('B') => month_name.to_owned(),
            Some('b' | 'h') => month_name[..3].to_owned(),
            Some('d') => format!("{day:02}"),
            Some('e') => format!("{day:2}"),
            Some('A') => day_name.to_owned(),
            Some('a') => day_name[..3].to_owned(),
            Some('H') => format!("{hour:02}"),
            Some('I') => format!("{:02}", (hour + 11) % 12 + 1),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('M') => format!("{minute:02}"),
            Some('S') => format!("{second:02}"),
            Some('F') => strftime("%Y-%m-%d", seconds),
            Some('D') => strftime("%m/%d/%y", seconds),
            Some('T') => strftime("%H:%M:%S", seconds),
            Some('R') => strftime("%H:%M", seconds),
            Some('%') => "%".to_owned(),
            other => {
                let rest = ['%'].into_iter().chain(bare.then_some('-'));
                rest.chain(other).collect()
            }
        };
        match field.trim_start_matches(['0', ' ']) {
            "" if bare => text.push('0'),
            short if bare => text.push_str(short),
            _ => text.push_str(&field),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::strftime;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let format = "%A %a %d %e %B %b %m %Y %y %H:%M:%S %I %p %% %q %";
        let short = "%-d.%-m. %-H:%-M %F %T %D %R %-q%-";
        assert_eq!(
            strftime(short, 1_741_000_000 - 11 * 3_600),
            "3.3. 0:6 2025-03-03 00:06:40 03/03/25 00:06 %-q%-"
        );
        for (seconds, expected) in [
            (
                0,
                "Thursday Thu 01  1 January Jan 01 1970 70 00:00:00 12 AM % %q %",
            ),
            (
                951_825_599,
                "Tuesday Tue 29 29 February Feb 02 2000 00 11:59:59 11 AM % %q %",
            ),
            (
                1_735_689_599,
                "Tuesday Tue 31 31 December Dec 12 2024 24 23:59:59 11 PM % %q %",
            ),
            (
                1_741_000_000,
                "Monday Mon 03  3 March Mar 03 2025 25 11:06:40 11 AM % %q %",
            ),
        ] {
            assert_eq!(strftime(format, seconds), expected);
        }
    }
}
