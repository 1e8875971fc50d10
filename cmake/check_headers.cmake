# Target check_headers: every header compiles alone. Each one gets a source of
# a single #include, built like any other source, so that only headers that
# changed are compiled again.
function(flotilla_check_headers)
  file(GLOB_RECURSE headers RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS
    common/*.h model/*.h kernels/*.h worker/*.h scheduler/*.h simulator/*.h proto/*.h router/*.h cli/*.h
    tests/*.h)
  set(sources)
  foreach(header IN LISTS headers)
    set(source ${PROJECT_BINARY_DIR}/check_headers/${header}.cc)
    file(CONFIGURE OUTPUT ${source} CONTENT "#include \"${header}\"\n" @ONLY)
    if(header MATCHES "^kernels/cpu/.*avx512")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${FLOTILLA_AVX512_FLAGS}")
    elseif(header MATCHES "^kernels/")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${FLOTILLA_AVX2_FLAGS}")
    endif()
    list(APPEND sources ${source})
  endforeach()
  add_library(check_headers OBJECT EXCLUDE_FROM_ALL ${sources})
  get_property(libraries GLOBAL PROPERTY FLOTILLA_LIBRARIES)
  target_link_libraries(check_headers PRIVATE ${libraries})
  target_compile_options(check_headers PRIVATE -O0 -Wno-unused-function -Wno-unused-variable)
endfunction()
