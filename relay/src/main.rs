//! The `relay` binary: see the library for everything.

fn main() -> std::process::ExitCode {
    relay::cli::main()
}
