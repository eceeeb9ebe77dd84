# nvcc is called by name: CMake's own CUDA support would add seconds to every configuration, and fail the build of the CPU
# backend where nvcc and the host compiler do not fit.
#
# Sets REGROW_CUDA_FOUND: nvcc compiles a kernel with the flags of the build, and its static runtime is there.

set(NVCC_FLAGS -std=c++20 -O3 -ccbin ${CMAKE_CXX_COMPILER} -Xcompiler=-fPIC,-fvisibility=hidden
    -gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90,code=[sm_90,compute_90])

# Empty if all is well, else what is missing.
function(try_cuda result)
  find_program(NVCC nvcc HINTS ENV CUDA_HOME PATH_SUFFIXES bin)
  if(NOT NVCC)
    set(${result} "there is no nvcc: put it on the PATH or set CUDA_HOME" PARENT_SCOPE)
    return()
  endif()
  set(trial ${CMAKE_BINARY_DIR}/cuda_trial)
  file(WRITE ${trial}.cu "__global__ void kernel() {}\nint main() { kernel<<<1, 1>>>(); }\n")
  execute_process(COMMAND ${NVCC} ${NVCC_FLAGS} -c ${trial}.cu -o ${trial}.o
                  RESULT_VARIABLE code ERROR_VARIABLE log OUTPUT_VARIABLE log)
  if(NOT code EQUAL 0)
    set(${result} "${NVCC} does not compile a kernel:\n${log}" PARENT_SCOPE)
    return()
  endif()
  # The runtime belongs to the toolkit that nvcc, perhaps a script elsewhere, really is.
  execute_process(COMMAND ${NVCC} --dryrun -c ${trial}.cu ERROR_VARIABLE log OUTPUT_VARIABLE log)
  string(REGEX MATCHALL "-L[^\" \n]+" folders "${log}")
  list(TRANSFORM folders REPLACE "^-L" "")
  find_library(CUDART_STATIC cudart_static HINTS ${folders})
  if(NOT CUDART_STATIC)
    set(${result} "${NVCC} comes without libcudart_static.a: install the CUDA runtime's development files" PARENT_SCOPE)
    return()
  endif()
  set(${result} "" PARENT_SCOPE)
endfunction()

# One object per source, so that they compile side by side.
function(add_cuda_objects target)
  foreach(source ${ARGN})
    cmake_path(GET source STEM name)
    set(object ${CMAKE_BINARY_DIR}/cuda_${name}.o)
    add_custom_command(
      OUTPUT ${object}
      COMMAND ${NVCC} ${NVCC_FLAGS} -I${CMAKE_SOURCE_DIR}/csrc -MD -MF ${object}.d
              -c ${CMAKE_SOURCE_DIR}/${source} -o ${object}
      DEPENDS ${source} DEPFILE ${object}.d VERBATIM)
    set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
    target_sources(${target} PRIVATE ${object})
  endforeach()
  # Its symbols stay inside: torch brings a CUDA runtime of its own. It looks for the driver at its first call, so that
  # the library loads on machines without one.
  target_link_libraries(${target} PRIVATE ${CUDART_STATIC} dl rt pthread)
  target_link_options(${target} PRIVATE -Wl,--exclude-libs,libcudart_static.a)
endfunction()

set(REGROW_CUDA_FOUND FALSE)
if(NOT REGROW_CUDA STREQUAL "OFF")
  # Once per compiler: a configuration should not take seconds longer each time.
  set(tried "${NVCC} ${CMAKE_CXX_COMPILER}")
  if(NVCC AND CUDART_STATIC AND REGROW_CUDA_TRIED STREQUAL tried)
    set(problem "")
  else()
    try_cuda(problem)
  endif()
  if(problem STREQUAL "")
    set(REGROW_CUDA_TRIED "${NVCC} ${CMAKE_CXX_COMPILER}" CACHE INTERNAL "")
    set(REGROW_CUDA_FOUND TRUE)
  elseif(REGROW_CUDA STREQUAL "ON")
    message(FATAL_ERROR "REGROW_CUDA is ON, but ${problem}")
  elseif(NVCC)
    message(WARNING "Building without CUDA: ${problem}")
  else()
    message(STATUS "Building without CUDA: ${problem}")
  endif()
endif()
