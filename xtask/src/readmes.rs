//! The README in two languages says the same: that much of it a test can see.

/// What a README is made of, whatever its language: headings by level, code without its comments,
/// rows of tables by their number of cells, links, and numbers.
#[derive(Debug, PartialEq, Eq)]
struct Shape {
    headings: Vec<usize>,
    code: Vec<String>,
    rows: Vec<usize>,
    links: Vec<String>,
    numbers: Vec<String>,
}

impl Shape {
    fn of(text: &str) -> Self {
        let mut shape = Self {
            headings: Vec::new(),
            code: Vec::new(),
            rows: Vec::new(),
            links: Vec::new(),
            numbers: Vec::new(),
        };
        let mut in_code = false;
        for line in text.lines() {
            if line.starts_with("```") {
                in_code = !in_code;
            } else if in_code {
                let code = line.split(" // ").next().unwrap_or_default();
                // What a command does is told two blanks behind it.
                let code = code.trim_start().split("  ").next().unwrap_or_default().trim();
                shape.code.push(code.to_owned());
            } else {
                let level = line.len() - line.trim_start_matches('#').len();
                if level > 0 {
                    shape.headings.push(level);
                }
                if line.starts_with('|') {
                    shape.rows.push(line.matches(" |").count());
                }
                shape.numbers.extend(numbers(line));
            }
        }
        let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        shape.links = links.filter(|link| !link.starts_with("README")).map(str::to_owned).collect();
        shape.links.sort();
        shape.numbers.sort();
        shape
    }
}

/// Numbers of two digits and more; small ones are words in one language or the other.
fn numbers(line: &str) -> impl Iterator<Item = String> {
    line.split(|c: char| !c.is_ascii_digit() && c != ',')
        .map(|number| number.trim_matches(',').replace(',', ""))
        .filter(|number| number.len() > 1)
}

#[test]
fn the_readme_in_chinese_has_what_the_english_one_has() {
    let of = |name: &str| {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
        Shape::of(&std::fs::read_to_string(format!("{path}/{name}")).unwrap())
    };
    let (english, chinese) = (of("README.md"), of("README.zh-CN.md"));
    assert_eq!(english.headings, chinese.headings, "headings");
    assert_eq!(english.code, chinese.code, "code");
    assert_eq!(english.rows, chinese.rows, "rows of tables");
    assert_eq!(english.links, chinese.links, "links");
    assert_eq!(english.numbers, chinese.numbers, "numbers");
}
