//! How far the packet programs are from the limits of the kernel's verifier.
//!
//! The figures come from the verifier's own log of a load. They differ between kernel versions, so
//! `scripts/test-kernels.sh` runs this on the oldest supported kernel and shows what it prints.

use std::fmt::Write as _;
use std::sync::Mutex;

use libbpf_rs::libbpf_sys::{self, bpf_insn};
use libbpf_rs::{Object, ObjectBuilder, PrintLevel};
use sluice_datapath::{ObjectName, kernel};

/// Objects whose programs nodes and the lab attach, and that of source NAT, which no program of theirs has yet.
const OBJECTS: [ObjectName; 5] = [
    ObjectName::Gateway,
    ObjectName::Vswitch,
    ObjectName::Guard,
    ObjectName::SwitchPort,
    ObjectName::NatTest,
];

/// BPF_COMPLEXITY_LIMIT_INSNS: instructions that the verifier processes before it gives up.
const INSTRUCTIONS_MAX: u32 = 1_000_000;
/// MAX_BPF_STACK: bytes for all functions of a call chain together.
const STACK_BYTES_MAX: u32 = 512;
/// Share of the instructions that a program may use. The rest is for changes, and for kernels whose verifier
/// follows more branches than that of this one.
const INSTRUCTIONS_PERCENT_MAX: u32 = 70;
/// Share of the stack that a program may use. The compiler alone decides what it uses, so the rest is for changes only.
const STACK_PERCENT_MAX: u32 = 75;

/// BPF_LOG_STATS: the verifier logs what it used, and no instructions.
const LOG_STATS: u32 = 4;
/// The verifier rounds each function's stack up to the granularity of the interpreter.
const STACK_STEP: u32 = 32;

/// What libbpf printed since the last load.
static MESSAGES: Mutex<String> = Mutex::new(String::new());

fn keep(_level: PrintLevel, text: String) {
    MESSAGES.lock().unwrap().push_str(&text);
}

/// What the verifier reported about one program.
#[derive(Debug, PartialEq, Eq)]
struct Usage {
    instructions: u32,
    /// Bytes of stack that each function of the program uses, in the order of the functions.
    stack: Vec<u32>,
}

/// Reads a line of `verification time 5 usec\nstack depth 64+0\nprocessed 1234 insns (limit ...`.
fn parse_log(log: &str) -> Option<Usage> {
    let after = |prefix: &str| log.lines().find_map(|line| line.trim().strip_prefix(prefix));
    let instructions = after("processed ")?.split(' ').next()?.parse().ok()?;
    let stack = after("stack depth ")?.split('+').map(|bytes| bytes.trim().parse().ok());
    Some(Usage { instructions, stack: stack.collect::<Option<_>>()? })
}

/// The log of one program within everything that libbpf printed.
fn log_of<'a>(messages: &'a str, program: &str) -> Option<&'a str> {
    let begin = format!("prog '{program}': -- BEGIN PROG LOAD LOG --\n");
    let log = &messages[messages.find(&begin)? + begin.len()..];
    Some(&log[..log.find("-- END PROG LOAD LOG --")?])
}

/// The end of the verifier's log of an object that it rejects. libbpf asks for the log if no level is set.
fn reason(name: ObjectName) -> String {
    let open = ObjectBuilder::default().open_memory(name.bytes().expect("the object was built")).unwrap();
    MESSAGES.lock().unwrap().clear();
    assert!(open.load().is_err(), "the verifier accepts the object this time");
    let messages = MESSAGES.lock().unwrap();
    let lines: Vec<&str> = messages.lines().collect();
    lines[lines.len().saturating_sub(60)..].join("\n")
}

/// Loads all programs of an object with the verifier's statistics.
fn load(name: ObjectName) -> (Object, String) {
    libbpf_rs::set_print(Some((PrintLevel::Debug, keep)));
    MESSAGES.lock().unwrap().clear();
    let mut open = ObjectBuilder::default().open_memory(name.bytes().expect("the object was built")).unwrap();
    for mut program in open.progs_mut() {
        program.set_log_level(LOG_STATS);
    }
    for mut map in open.maps_mut() {
        // The verifier does not look at sizes, and tables of full size take seconds to reserve.
        if map.name() == "cells" {
            map.set_max_entries(4096).unwrap();
        }
    }
    let object =
        open.load().unwrap_or_else(|error| panic!("{error}; the verifier's log ends with\n{}", reason(name)));
    let messages = std::mem::take(&mut *MESSAGES.lock().unwrap());
    (object, messages)
}

/// Function calls of a program: the caller's and the callee's first instruction.
struct Calls {
    /// First instruction of each function, in order.
    starts: Vec<usize>,
    edges: Vec<(usize, usize)>,
}

impl Calls {
    fn of(instructions: &[bpf_insn]) -> Self {
        // A call of a function, or the address of a callback that a helper calls.
        let call = (libbpf_sys::BPF_JMP | libbpf_sys::BPF_CALL) as u8;
        let address = (libbpf_sys::BPF_LD | libbpf_sys::BPF_IMM | libbpf_sys::BPF_DW) as u8;
        let sites: Vec<(usize, usize)> = instructions
            .iter()
            .enumerate()
            .filter(|(_, instruction)| {
                let source = u32::from(instruction.src_reg());
                instruction.code == call && source == libbpf_sys::BPF_PSEUDO_CALL
                    || instruction.code == address && source == libbpf_sys::BPF_PSEUDO_FUNC
            })
            .map(|(at, instruction)| (at, (at as i64 + 1 + i64::from(instruction.imm)) as usize))
            .collect();
        let mut starts: Vec<usize> = sites.iter().map(|(_, target)| *target).chain([0]).collect();
        starts.sort_unstable();
        starts.dedup();
        let function = |at: usize| starts.partition_point(|start| *start <= at) - 1;
        let mut edges: Vec<_> = sites.iter().map(|(at, target)| (function(*at), function(*target))).collect();
        edges.sort_unstable();
        edges.dedup();
        Self { starts, edges }
    }

    /// Bytes of stack of the deepest call chain that begins with a function.
    fn deepest(&self, function: usize, stack: &[u32]) -> u32 {
        let callees = self.edges.iter().filter(|(caller, _)| *caller == function);
        let below = callees.map(|(_, callee)| self.deepest(*callee, stack)).max();
        stack[function].max(1).next_multiple_of(STACK_STEP) + below.unwrap_or(0)
    }
}

/// Adds a line about a figure; returns its percentage of the limit.
fn report(out: &mut String, program: &str, what: &str, used: u32, limit: u32) -> u32 {
    let percent = f64::from(used) * 100.0 / f64::from(limit);
    writeln!(out, "verifier: {program:<16} {what:<22} {used:>7} of {limit:>7}  {percent:>5.1} %").unwrap();
    (used * 100).div_ceil(limit)
}

#[test]
fn programs_stay_clear_of_the_limits_of_the_verifier() {
    kernel::check().expect("the tests run as root");
    let (mut table, mut above) = (String::new(), Vec::new());
    for name in OBJECTS {
        let (object, messages) = load(name);
        for program in object.progs() {
            let program_name = program.name().to_str().unwrap();
            let log = log_of(&messages, program_name).expect("libbpf prints the log of each program");
            let usage = parse_log(log).unwrap_or_else(|| panic!("{program_name}: no statistics in {log:?}"));
            let calls = Calls::of(program.insns());
            assert_eq!(calls.starts.len(), usage.stack.len(), "functions of {program_name}");
            let stack = calls.deepest(0, &usage.stack);
            let instructions = report(
                &mut table,
                program_name,
                "verified instructions",
                usage.instructions,
                INSTRUCTIONS_MAX,
            );
            let stack = report(&mut table, program_name, "bytes of stack", stack, STACK_BYTES_MAX);
            if instructions > INSTRUCTIONS_PERCENT_MAX || stack > STACK_PERCENT_MAX {
                above.push(program_name.to_owned());
            }
        }
    }
    // The harness may have begun a line.
    println!("\n{table}");
    assert!(
        above.is_empty(),
        "above {INSTRUCTIONS_PERCENT_MAX} % of the verifier's instructions or {STACK_PERCENT_MAX} % of its stack: {}\n{table}",
        above.join(", ")
    );
}

#[test]
fn log_of_the_verifier_is_understood() {
    let messages = "libbpf: prog 'one': -- BEGIN PROG LOAD LOG --\n\
        verification time 5 usec\nstack depth 64+0+8\n\
        processed 1234 insns (limit 1000000) max_states_per_insn 1 total_states 2 peak_states 2 mark_read 1\n\
        -- END PROG LOAD LOG --\nlibbpf: something else\n";
    let usage = parse_log(log_of(messages, "one").unwrap());
    assert_eq!(usage, Some(Usage { instructions: 1234, stack: vec![64, 0, 8] }));
    assert_eq!(log_of(messages, "two"), None);
    assert_eq!(parse_log("stack depth 64\n"), None);
}

#[test]
fn deepest_call_chain_counts() {
    // The first function calls the second and the third, and the second calls the third.
    let calls = Calls { starts: vec![0, 10, 20], edges: vec![(0, 1), (0, 2), (1, 2)] };
    assert_eq!(calls.deepest(0, &[64, 0, 40]), 64 + 32 + 64);
    assert_eq!(calls.deepest(0, &[1, 100, 8]), 32 + 128 + 32);
}
