//! The program: what was asked for, done, and an exit code that tells how it went.

use std::process::ExitCode;

fn main() -> ExitCode {
    makbuz::cli::main()
}
