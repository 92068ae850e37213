//! The command line: a file per subcommand.
