# Target check_headers: every header compiles alone. A header with a source of its own name is
# checked by that source, which includes it before anything else (scripts/check_layering.py
# holds sources to that), unless a precompiled header with gRPC or GoogleTest is in front. Where
# sources are compiled together (FLOTILLA_UNITY), that is checked by the presets that compile each
# alone, which are those of the sanitizers. Each other header gets a source of a single #include,
# built like any other source, so that only headers that changed are compiled again. The
# precompiled header of the standard library and Abseil hides nothing: scripts/check_includes.py
# looks for what it holds.
function(flotilla_check_headers)
  file(GLOB_RECURSE headers RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS
    common/*.h model/*.h kernels/*.h worker/*.h quantize/*.h scheduler/*.h simulator/*.h loadtest/*.h
    proto/*.h router/*.h rpc/*.h cli/*.h tests/*.h)
  set(precompiled "^(proto/codec|router/grpc|router/remote|scheduler/remote|worker/agent"
    "|worker/hosts|tests/contract|tests/kernels|tests/proto/codec|tests/sim)/")
  list(JOIN precompiled "" precompiled)
  set(sources)
  foreach(header IN LISTS headers)
    string(REGEX REPLACE "\\.h$" ".cc" own ${header})
    if(EXISTS ${PROJECT_SOURCE_DIR}/${own} AND NOT header MATCHES ${precompiled})
      continue()
    endif()
    set(source ${PROJECT_BINARY_DIR}/check_headers/${header}.cc)
    file(CONFIGURE OUTPUT ${source} CONTENT "#include \"${header}\"\n" @ONLY)
    if(header MATCHES "^kernels/")
      set(options ${FLOTILLA_AVX2_FLAGS})
      if(header MATCHES "^kernels/cpu/.*avx512")
        set(options ${FLOTILLA_AVX512_FLAGS})
      endif()
      set_source_files_properties(${source} PROPERTIES
        COMPILE_OPTIONS "${options}" SKIP_PRECOMPILE_HEADERS TRUE)
    endif()
    list(APPEND sources ${source})
  endforeach()
  add_library(check_headers OBJECT EXCLUDE_FROM_ALL ${sources})
  get_property(libraries GLOBAL PROPERTY FLOTILLA_LIBRARIES)
  target_link_libraries(check_headers PRIVATE ${libraries})
  target_compile_options(check_headers PRIVATE -pthread -Wno-unused-function -Wno-unused-variable)
  if(TARGET flotilla_headers)
    target_precompile_headers(check_headers REUSE_FROM flotilla_headers)
  endif()
endfunction()
