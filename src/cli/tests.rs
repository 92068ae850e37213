//! The command line's shape, and what README.md says of it.

use std::fmt::Write as _;
use std::path::Path;

use clap::CommandFactory;

use super::*;

#[test]
fn the_command_line_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn wrong_usage_is_two_and_a_near_miss_is_named() {
    let error = Cli::try_parse_from(["makbuz", "recipts", "list"]).expect_err("refused");
    assert_eq!(error.exit_code(), 2);
    assert!(error.to_string().contains("receipts"), "{error}");
    assert_eq!(Cli::try_parse_from(["makbuz", "serve", "--roles", "edge,relays"]).expect_err("refused").exit_code(), 2);
    assert_eq!(Cli::try_parse_from(["makbuz", "--help"]).expect_err("help").exit_code(), 0);
}

#[test]
fn a_configuration_file_is_found_in_the_order_that_help_says() {
    let context = |config: Option<&str>, environment: Environment| Context {
        common: Common { config: config.map(PathBuf::from), admin: None },
        environment,
    };
    let variable = || Environment::from([("MAKBUZ_CONFIG", "/etc/makbuz.toml")]);
    assert_eq!(context(Some("a.toml"), variable()).config_file(), Some(PathBuf::from("a.toml")));
    assert_eq!(context(None, variable()).config_file(), Some(PathBuf::from("/etc/makbuz.toml")));
    assert_eq!(context(None, Environment::default()).config_file(), None, "this folder has no makbuz.toml");
}

const START: &str = "<!-- command reference -->\n";
const END: &str = "<!-- end of command reference -->";

/// With `MAKBUZ_WRITE_README=1` in the environment it brings the reference up to date instead.
#[test]
fn readme_lists_exactly_the_commands_and_their_options() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let readme = std::fs::read_to_string(&path).expect("README.md");
    let (before, rest) = readme.split_once(START).expect("the mark of its start");
    let (listed, after) = rest.split_once(END).expect("the mark of its end");
    let reference = reference();
    if Environment::of_process().text("MAKBUZ_WRITE_README") == Some("1") {
        std::fs::write(&path, format!("{before}{START}{reference}{END}{after}")).expect("written");
        return;
    }
    assert!(listed == reference, "README.md is behind: run this test with MAKBUZ_WRITE_README=1");
}

/// Every command with its arguments, as a fenced text.
fn reference() -> String {
    let mut text = String::from("```text\n");
    for command in Cli::command().get_subcommands() {
        describe(&mut text, "makbuz", command);
    }
    text + "```\n"
}

fn describe(text: &mut String, path: &str, command: &clap::Command) {
    let path = format!("{path} {}", command.get_name());
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let inner: Vec<_> = command.get_subcommands().filter(|inner| inner.get_name() != "help").collect();
    if !inner.is_empty() {
        return inner.into_iter().for_each(|inner| describe(text, &path, inner));
    }
    writeln!(text, "{path:<26} {about}").expect("a text");
    for argument in command.get_arguments().filter(|argument| !argument.is_global_set() && argument.get_id() != "help")
    {
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        let default: Vec<_> = argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        let default = if default.is_empty() || argument.is_hide_default_value_set() {
            String::new()
        } else {
            format!(" [{}]", default.join(","))
        };
        let line = format!("    {:<30} {help}{default}", usage(argument));
        writeln!(text, "{}", line.trim_end()).expect("a text");
    }
}

/// `--limit LIMIT`, or `RECEIPT` where it has no name.
fn usage(argument: &clap::Arg) -> String {
    let value = argument.get_value_names().and_then(|names| names.first()).map(ToString::to_string).unwrap_or_default();
    match argument.get_long() {
        Some(long) if argument.get_action().takes_values() => format!("--{long} {value}"),
        Some(long) => format!("--{long}"),
        None => value,
    }
}
