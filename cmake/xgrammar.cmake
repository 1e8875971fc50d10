# Target xgrammar: the C++ core of XGrammar, which compiles grammars and makes the masks of structured
# output. Its sources come from its package of PyPI; its own build, its bindings and its tests are
# left out. In place of grammar_matcher.cc there is a source that includes it and adds a function, and
# tokenizer_info.cc is compiled with a line that is mended.

set(FLOTILLA_XGRAMMAR "" CACHE PATH "Folder with XGrammar's sources; by default scripts/fetch_xgrammar fetches them")
set(source ${FLOTILLA_XGRAMMAR})
if(NOT source)
  execute_process(COMMAND ${PROJECT_SOURCE_DIR}/scripts/fetch_xgrammar
    OUTPUT_VARIABLE source OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/scripts/fetch_xgrammar)
endif()
file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${source}/cpp/*.cc)
list(FILTER sources EXCLUDE REGEX "/cpp/(tvm_ffi/|grammar_matcher.cc|tokenizer_info.cc)")
if(NOT sources)
  message(FATAL_ERROR "FLOTILLA_XGRAMMAR is ${FLOTILLA_XGRAMMAR}, but that folder has no cpp/*.cc. "
    "It must be the unpacked source package of XGrammar.")
endif()

# The tokens that begin with another one follow it in the sorted vocabulary. XGrammar also counts those
# behind them that have it elsewhere, and forbids them with it.
set(wrong "token.find(prefix_stack.top().first) == std::string::npos")
file(READ ${source}/cpp/tokenizer_info.cc text)
string(FIND "${text}" "${wrong}" place)
if(place EQUAL -1)
  message(FATAL_ERROR "The line of XGrammar's tokenizer_info.cc that cmake/xgrammar.cmake mends is not there.")
endif()
string(REPLACE "${wrong}" "token.rfind(prefix_stack.top().first, 0) != 0" text "${text}")
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/xgrammar/tokenizer_info.cc CONTENT "${text}" @ONLY)

set(own ${PROJECT_SOURCE_DIR}/cmake/xgrammar)
add_library(xgrammar STATIC ${sources} ${own}/matcher_bytes.cc ${PROJECT_BINARY_DIR}/xgrammar/tokenizer_info.cc)
target_include_directories(xgrammar SYSTEM PUBLIC ${own} ${source}/include ${source}/3rdparty/dlpack/include
  PRIVATE ${source}/cpp ${source}/3rdparty/picojson)
target_compile_definitions(xgrammar PRIVATE XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0)
# Errors name source files, which must not depend on where these lie.
target_compile_options(xgrammar PRIVATE -w -fmacro-prefix-map=${source}/cpp/=)
