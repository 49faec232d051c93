//! How some hosted services judge the text of a script before they run it.

/// What such a service answers to a script with a key that is not written out.
const KEYS: &str = "ERR bad lua script for redis cluster, all the keys that the script uses should be passed \
                    using the KEYS array, and KEYS should not be in expression";
/// And to one whose command is an argument.
const COMMAND: &str = "ERR bad lua script for redis cluster, first parameter of redis.call/redis.pcall must be a \
                       single literal string";
const UNPACK: &str = "ERR bad lua script for redis cluster, unpack is not supported";
const NESTED: &str =
    "ERR bad lua script for redis cluster, nested redis.call/redis.pcall are not supported";

/// Commands without a key.
const WITHOUT: [&str; 6] = ["INFO", "PUBLISH", "PUBSUB", "SELECT", "SPUBLISH", "TIME"];
/// Commands whose arguments are all keys.
const ALL: [&str; 3] = ["DEL", "EXISTS", "MGET"];

/// The answer of a service that checks scripts by their text; `None` if it takes this one.
///
/// The rule is that of the public reports: a command is written as a literal, a key as `KEYS[n]` with a number,
/// and `KEYS` is in no other argument. A call must be spelt `redis.call(` or `redis.pcall(`, without another
/// call inside it, and nothing may be unpacked.
pub fn refused_script(text: &str) -> Option<&'static str> {
    let code = without_comments(text);
    if words(&code).any(|(_, word)| word == "unpack") {
        return Some(UNPACK);
    }
    for (end, word) in words(&code) {
        if word != "redis.call" && word != "redis.pcall" {
            continue;
        }
        let Some(inner) = code[end..].strip_prefix('(') else { return Some(COMMAND) };
        let arguments = arguments(inner);
        let Some(command) = arguments.first().and_then(|first| literal(first)) else {
            return Some(COMMAND);
        };
        let command = command.to_ascii_uppercase();
        let keys = match &*command {
            one if WITHOUT.contains(&one) => 0,
            one if ALL.contains(&one) => arguments.len() - 1,
            _ => 1,
        };
        let (keys, rest) = arguments[1..].split_at(keys.min(arguments.len() - 1));
        let has = |argument: &str, word: &str| words(argument).any(|(_, one)| one == word);
        if rest.iter().any(|one| has(one, "redis.call") || has(one, "redis.pcall")) {
            return Some(NESTED);
        }
        if !keys.iter().all(|key| is_key(key)) || rest.iter().any(|one| has(one, "KEYS")) {
            return Some(KEYS);
        }
        if keys.is_empty() && !WITHOUT.contains(&&*command) {
            return Some(KEYS);
        }
    }
    None
}

/// The text of a script that a command brings to a server, if it brings one.
pub fn script_of<'a>(words: &[&'a [u8]]) -> Option<&'a str> {
    let is = |at: usize, word: &str| {
        words.get(at).is_some_and(|it| it.eq_ignore_ascii_case(word.as_bytes()))
    };
    let at = match () {
        () if is(0, "EVAL") || is(0, "EVAL_RO") => 1,
        () if (is(0, "SCRIPT") || is(0, "FUNCTION")) && is(1, "LOAD") => words.len() - 1,
        () => return None,
    };
    std::str::from_utf8(words.get(at)?).ok()
}

fn without_comments(text: &str) -> String {
    let mut code = String::new();
    for line in text.lines() {
        let mut quote = None;
        let mut end = line.len();
        for (at, it) in line.char_indices() {
            match quote {
                Some(mark) => quote = (it != mark).then_some(mark),
                None if it == '\'' || it == '"' => quote = Some(it),
                None if line[at..].starts_with("--") => {
                    end = at;
                    break;
                }
                None => {}
            }
        }
        code.push_str(&line[..end]);
        code.push('\n');
    }
    code
}

/// The names in a text, dotted ones as one, each with its end; none of those inside quotes.
fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut found = Vec::new();
    let (mut quote, mut start) = (None, None);
    for (at, it) in code.char_indices().chain([(code.len(), '\n')]) {
        let is_word = quote.is_none() && (it.is_ascii_alphanumeric() || it == '_' || it == '.');
        match (is_word, start) {
            (true, None) => start = Some(at),
            (false, Some(began)) => {
                found.push((at, &code[began..at]));
                start = None;
            }
            _ => {}
        }
        match quote {
            Some(mark) => quote = (it != mark).then_some(mark),
            None if it == '\'' || it == '"' => quote = Some(it),
            None => {}
        }
    }
    found.into_iter()
}

/// The arguments of a call, from behind its opening bracket.
fn arguments(inner: &str) -> Vec<&str> {
    let (mut depth, mut quote, mut start) = (0, None, 0);
    let mut arguments = Vec::new();
    for (at, it) in inner.char_indices() {
        match (quote, it) {
            (Some(mark), _) => quote = (it != mark).then_some(mark),
            (None, '\'' | '"') => quote = Some(it),
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')') if depth == 0 => {
                arguments.push(inner[start..at].trim());
                break;
            }
            (None, ')' | ']' | '}') => depth -= 1,
            (None, ',') if depth == 0 => {
                arguments.push(inner[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    arguments
}

fn literal(argument: &str) -> Option<&str> {
    let inner = argument.strip_prefix('\'')?.strip_suffix('\'')?;
    (!inner.contains('\'')).then_some(inner)
}

/// Whether this is `KEYS[n]` with a number.
fn is_key(argument: &str) -> bool {
    let number = argument.strip_prefix("KEYS[").and_then(|rest| rest.strip_suffix(']'));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|it| it.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_of_public_reports_are_judged_as_they_were() {
        for taken in [
            "return redis.call('GET', KEYS[1])",
            "KEYS[1] = KEYS[1] .. ':1'; redis.call('SET', KEYS[1], 1)",
            "return redis.call('MGET', KEYS[1], KEYS[2])",
            "local time = redis.call('TIME') -- redis.call(x)",
            "redis.pcall('PUBLISH', ARGV[1], 'KEYS')",
        ] {
            assert_eq!(refused_script(taken), None, "{taken}");
        }
        for (refused, words) in [
            ("local key = KEYS[1] return redis.call('SETNX', key, 1)", KEYS),
            ("redis.call('set', KEYS[1] .. ':1', 1)", KEYS),
            ("for i = 1, #KEYS do redis.call('set', KEYS[i], ARGV[1]) end", KEYS),
            ("return redis.call('get', ARGV[1])", KEYS),
            ("return redis.call('MGET', KEYS[1], key)", KEYS),
            ("return redis.call('SET', KEYS[1], KEYS[2])", KEYS),
            ("return redis.call('MGET')", KEYS),
            ("redis.call(ARGV[1], KEYS[1])", COMMAND),
            ("local call = redis.call return call('GET', KEYS[1])", COMMAND),
            ("return redis.call('MGET', unpack(KEYS))", UNPACK),
            ("redis.call('HDEL', KEYS[1], redis.call('GET', KEYS[2]))", NESTED),
        ] {
            assert_eq!(refused_script(refused), Some(words), "{refused}");
        }
    }
}
