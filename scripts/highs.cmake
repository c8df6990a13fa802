# The solver's sources, several in one: half the time of a first build.
set(CMAKE_UNITY_BUILD ON)
