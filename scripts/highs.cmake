# Several of the solver's sources in one, for a shorter first build (docs/decisions/placement.md). A change here
# counts after `cargo clean -p highs-sys`.
set(CMAKE_UNITY_BUILD ON)
