# The compiler of CUDA. It is called as any other tool, because CMake's own support for CUDA does not
# take the toolkit that the wheels of PyPI make up. Sets FLOTILLA_NVCC, which is empty where CUDA
# code is not built.

set(FLOTILLA_CUDA auto CACHE STRING "Whether CUDA code is built: auto (where nvcc is found), on or off")
set_property(CACHE FLOTILLA_CUDA PROPERTY STRINGS auto on off)
if(NOT FLOTILLA_CUDA MATCHES "^(auto|on|off)$")
  message(FATAL_ERROR "FLOTILLA_CUDA is ${FLOTILLA_CUDA}, but it must be auto, on or off.")
endif()

set(FLOTILLA_CUDA_VERSION 13.0)  # the oldest that is tested
set(FLOTILLA_NVCC "")
if(NOT FLOTILLA_CUDA STREQUAL "off")
  # With CONFIGURE_DEPENDS a build configures itself again when one of these comes or goes.
  file(GLOB places CONFIGURE_DEPENDS
    /usr/local/cuda/bin/nvcc
    ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/cu13/bin/nvcc)
  find_program(on_path nvcc NO_CACHE)
  if(on_path)
    list(PREPEND places ${on_path})
  endif()
  set(unfit "")
  foreach(place IN LISTS places)
    execute_process(COMMAND ${place} --version OUTPUT_VARIABLE output ERROR_QUIET)
    set(version "")
    if(output MATCHES "release [0-9.]+, V([0-9.]+)")
      set(version ${CMAKE_MATCH_1})
    endif()
    if(version VERSION_GREATER_EQUAL FLOTILLA_CUDA_VERSION)
      # The one on PATH may be a link or a script that calls the toolkit's, whose other folders are
      # needed. A dry run says where it is.
      file(REAL_PATH ${place} place)
      execute_process(COMMAND ${place} --dryrun -c any.cu OUTPUT_QUIET ERROR_VARIABLE steps)
      string(REGEX MATCH "_HERE_=([^\n]+)" steps "${steps}")
      set(FLOTILLA_NVCC ${CMAKE_MATCH_1}/nvcc)
      message(STATUS "CUDA code is built with ${FLOTILLA_NVCC} (${version})")
      break()
    endif()
    string(APPEND unfit " The version of ${place} is '${version}'.")
  endforeach()
  if(NOT FLOTILLA_NVCC)
    set(reason "No nvcc of version ${FLOTILLA_CUDA_VERSION} or later is on PATH, in "
      "/usr/local/cuda/bin or in .venv.${unfit}")
    if(FLOTILLA_CUDA STREQUAL "on")
      message(FATAL_ERROR ${reason} " Install the packages of scripts/cuda_requirements.txt in "
        ".venv, or configure with -DFLOTILLA_CUDA=off.")
    endif()
    message(STATUS ${reason} " CUDA code is not built.")
  endif()
endif()

# flotilla_cuda_library(NAME name SRCS a.cu b.cu)
# A static library for GPUs, with the runtime of CUDA linked statically, so that a program with it
# also runs where no driver is.
function(flotilla_cuda_library)
  cmake_parse_arguments(F "" "NAME" "SRCS" ${ARGN})
  cmake_path(GET FLOTILLA_NVCC PARENT_PATH bin)
  find_library(cudart cudart_static PATHS ${bin}/../lib64 ${bin}/../lib
    NO_DEFAULT_PATH NO_CACHE REQUIRED)
  find_package(Threads REQUIRED)
  set(launcher ${CMAKE_CXX_COMPILER_LAUNCHER})
  set(flags -std=c++20 -O3 --expt-relaxed-constexpr -Werror all-warnings -I${PROJECT_SOURCE_DIR}
    # Contraction is never left to a compiler, neither here nor in the code for the CPU.
    -fmad=false -Xcompiler=-ffp-contract=off
    # Code for A100 and H100, and a form that later GPUs translate.
    -gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90a,code=sm_90a
    -gencode=arch=compute_90,code=compute_90)
  set(objects)
  foreach(source IN LISTS F_SRCS)
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${F_NAME}/${source}.o)
    add_custom_command(OUTPUT ${object}
      COMMAND ${launcher} ${FLOTILLA_NVCC} ${flags} -MD -MF ${object}.d
              -c ${CMAKE_CURRENT_SOURCE_DIR}/${source} -o ${object}
      DEPENDS ${source} ${FLOTILLA_NVCC}
      DEPFILE ${object}.d
      COMMENT "Building CUDA object ${source}"
      VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/${F_NAME})
  add_library(${F_NAME} STATIC ${objects})
  set_target_properties(${F_NAME} PROPERTIES LINKER_LANGUAGE CXX)
  target_include_directories(${F_NAME} PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(${F_NAME} PUBLIC ${cudart} Threads::Threads ${CMAKE_DL_LIBS} rt)
endfunction()
