# Target xgrammar: the C++ core of XGrammar, which compiles grammars and makes the masks of structured
# output. Its sources come from its package of PyPI; its own build, its bindings and its tests are
# left out. In place of grammar_matcher.cc there is a source that includes it and adds two functions, one
# more source adds another form of compiled grammars, and lines of four others are mended.

set(FLOTILLA_XGRAMMAR "" CACHE PATH "Folder with XGrammar's sources; by default scripts/fetch_xgrammar fetches them")
set(source ${FLOTILLA_XGRAMMAR})
if(NOT source)
  execute_process(COMMAND ${PROJECT_SOURCE_DIR}/scripts/fetch_xgrammar
    OUTPUT_VARIABLE source OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/scripts/fetch_xgrammar)
endif()
file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${source}/cpp/*.cc)
list(FILTER sources EXCLUDE REGEX "/cpp/(tvm_ffi/|grammar_matcher.cc)")
if(NOT sources)
  message(FATAL_ERROR "FLOTILLA_XGRAMMAR is ${FLOTILLA_XGRAMMAR}, but that folder has no cpp/*.cc. "
    "It must be the unpacked source package of XGrammar.")
endif()

# xgrammar_mend(file wrong right): has a copy of a source compiled that has `right` in place of `wrong`.
function(xgrammar_mend file wrong right)
  file(READ ${source}/cpp/${file} text)
  string(FIND "${text}" "${wrong}" place)
  if(place EQUAL -1)
    message(FATAL_ERROR "XGrammar's ${file} has no '${wrong}', which cmake/xgrammar.cmake mends.")
  endif()
  string(REPLACE "${wrong}" "${right}" text "${text}")
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/xgrammar/${file} CONTENT "${text}" @ONLY)
  list(REMOVE_ITEM sources ${source}/cpp/${file})
  set(sources ${sources} ${PROJECT_BINARY_DIR}/xgrammar/${file} PARENT_SCOPE)
endfunction()
# The tokens that begin with another one follow it in the sorted vocabulary. XGrammar also counts those
# behind them that have it elsewhere, and forbids them with it.
xgrammar_mend(tokenizer_info.cc "token.find(prefix_stack.top().first) == std::string::npos"
  "token.rfind(prefix_stack.top().first, 0) != 0")
# What may follow a rule is read as a class of code points, of which the lowest 8 bits were compared: in
# [\u0100-\u05ff] was all of ASCII.
xgrammar_mend(earley_parser.cc "static_cast<uint8_t>(sub_sequence[i]) <= ch &&
        ch <= static_cast<uint8_t>(sub_sequence[i + 1])" "sub_sequence[i] <= ch && ch <= sub_sequence[i + 1]")
# Up to so many repetitions each have a state with a mask of its own, and more are counted. A token that
# has more is looked at when it could come, so this is less than the longest token has characters.
xgrammar_mend(grammar_functor.cc "kUnzipThreshold = 128" "kUnzipThreshold = 16")
# Its warnings about keywords of a schema that it ignores.
xgrammar_mend(json_schema_converter.cc "bool verbose = false" "bool verbose = true")

set(own ${PROJECT_SOURCE_DIR}/cmake/xgrammar)
add_library(xgrammar STATIC ${sources} ${own}/matcher_parts.cc ${own}/compiled_bytes.cc)
flotilla_together(xgrammar)
target_include_directories(xgrammar SYSTEM PUBLIC ${own} ${source}/include ${source}/3rdparty/dlpack/include
  PRIVATE ${source}/cpp ${source}/3rdparty/picojson)
target_compile_definitions(xgrammar PRIVATE XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0)
# Errors name source files, which must not depend on where these lie.
target_compile_options(xgrammar PRIVATE -w -fmacro-prefix-map=${source}/cpp/=)
# The preset odr would report types of XGrammar.
set_target_properties(xgrammar PROPERTIES INTERPROCEDURAL_OPTIMIZATION OFF)
