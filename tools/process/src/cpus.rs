//! The processors that the cores run on.

use pinion_runtime::real::available_cpus;

/// The first `wanted` of the processors that this process may use, or all of them.
///
/// # Errors
/// One line: there are fewer, or they cannot be found out.
pub fn cpus(wanted: Option<usize>) -> Result<Vec<usize>, String> {
    let mut cpus = available_cpus()
        .map_err(|error| format!("the CPU affinity mask cannot be read: {error}"))?;
    if let Some(wanted) = wanted {
        if wanted > cpus.len() {
            return Err(format!(
                "--cpus {wanted} is more than the {} CPUs of the process's affinity mask",
                cpus.len()
            ));
        }
        cpus.truncate(wanted);
    }
    Ok(cpus)
}
